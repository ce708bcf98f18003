// Tensor maps are made by the driver; its function is looked up at run time,
// so that nothing links against libcuda.
#include "kernels/tensor_map.h"

#include <cstring>

namespace hearth::kernels {
namespace {

// cuTensorMapEncodeTiled, with its enums as the ints they are (cuda.h is not needed, CUresult 0 is success).
using Encoder = int (*)(void* map, int data_type, uint32_t rank, void* address, const uint64_t* dimensions,
                        const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                        int interleave, int swizzle, int l2_promotion, int out_of_bounds_fill);
constexpr int type_bf16 = 9;
constexpr int no_interleave = 0;
constexpr int no_swizzle = 0;
constexpr int swizzle_128_bytes = 3;
constexpr int l2_promotion_256_bytes = 3;
constexpr int fill_with_zeros = 0;

Encoder find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned since_version = 12000;
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, since_version,
                                              cudaEnableDefault, &result),
             "look up cuTensorMapEncodeTiled");
  if (result != cudaDriverEntryPointSuccess || !function)
    fail_device("the GPU's driver has no cuTensorMapEncodeTiled; it needs a driver for CUDA 12 or newer");
  return reinterpret_cast<Encoder>(function);
}

}  // namespace

TensorMap make_tensor_map(const bf16* matrix, int64_t rows, int64_t columns, int64_t row_stride, int box_rows,
                          int box_columns, bool swizzled) {
  static const Encoder encode = find_encoder();
  const uint64_t dimensions[2] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  const uint64_t strides[1] = {static_cast<uint64_t>(row_stride) * sizeof(bf16)};
  const uint32_t box[2] = {static_cast<uint32_t>(box_columns), static_cast<uint32_t>(box_rows)};
  const uint32_t element_strides[2] = {1, 1};
  // Made here and copied: the driver insists on 64 bytes of alignment, which the caller's temporary may lack.
  alignas(TensorMap) uint64_t opaque[16] = {};
  const int status = encode(opaque, type_bf16, 2, const_cast<bf16*>(matrix), dimensions, strides, box,
                            element_strides, no_interleave, swizzled ? swizzle_128_bytes : no_swizzle,
                            l2_promotion_256_bytes, fill_with_zeros);
  if (status != 0)
    fail_device("the driver refused a tensor map (error ", status, ") of ", rows, " x ", columns,
                " with row stride ", row_stride, " and boxes of ", box_rows, " x ", box_columns);
  TensorMap map;
  std::memcpy(map.opaque, opaque, sizeof opaque);
  return map;
}

}  // namespace hearth::kernels
