// What every kernel stands on: types, shared memory, 16-byte vectors, reductions, launch.
//
// Kernel sources compile twice: with nvcc for the GPU, and with the host compiler against the SIMT emulator
// of tests/emulator, which runs and checks them without a GPU.  This header and ptx.cuh / ptx_sm90.cuh (one
// function per PTX instruction) are the only places with `#if` or `asm`.  The rules for a kernel author:
//
//   * Write plain CUDA: __global__, threadIdx, __launch_bounds__, __syncthreads(), __shfl_xor_sync().
//     Blocks are one-dimensional.
//   * No static __shared__.  There is one dynamic buffer; a constexpr layout gives each part an offset from
//     shared_memory() (1024-byte aligned).  Shared memory is addressed by 32-bit numbers (SharedAddress),
//     never by pointers, and is touched only by shared_load / shared_store and the functions of ptx.cuh.
//   * Global memory is touched by plain pointers (p[i]) or by load16 / store16.  Offsets are 64-bit.
//   * Warp-wide instructions are executed by all 32 lanes, barriers by all threads; a thread never returns
//     before the last barrier.  Accumulators are local arrays handed over by reference.
//   * A kernel is started by launch(kernel, grid, block, shared_bytes, stream, arguments...) from a launcher
//     declared in a header of plain C++ (elementwise.h says what holds for all).
//
// elementwise.cu is the smallest example, gemm_sm80.cu shows shared memory,
// copies in flight and tensor cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numbers>

#include "base/error.h"
#include "tensor/dtype.h"

#if defined(__CUDACC__)

#include <cuda_runtime.h>

namespace hearth {
// Where an instruction stands in the source: used by the emulator only.
struct Site {
  static constexpr __host__ __device__ Site here() { return {}; }
};
}  // namespace hearth

#else

#include "emulator/simt.h"

#endif

namespace hearth {

constexpr int warp_size = 32;
constexpr uint32_t full_warp = 0xffffffffu;

__device__ __forceinline__ int lane_index() {
  return static_cast<int>(threadIdx.x) & 31;
}
__device__ __forceinline__ int warp_index() {
  return static_cast<int>(threadIdx.x) >> 5;
}
__device__ __forceinline__ int64_t global_thread_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t threads_in_grid() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

// ---- shared memory

using SharedAddress = uint32_t;

// The first byte of the block's dynamic shared memory.
__device__ __forceinline__ SharedAddress shared_memory() {
#if defined(__CUDACC__)
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return static_cast<SharedAddress>(__cvta_generic_to_shared(dynamic_shared_memory));
#else
  return emulator::shared_memory();
#endif
}

// `address` must be a multiple of sizeof(T), at most 16.
template <class T>
__device__ __forceinline__ T shared_load(SharedAddress address, Site site = Site::here()) {
#if defined(__CUDACC__)
  return *static_cast<const T*>(__cvta_shared_to_generic(address));
#else
  return *static_cast<const T*>(emulator::shared_access(address, sizeof(T), emulator::Access::read, site));
#endif
}
template <class T>
__device__ __forceinline__ void shared_store(SharedAddress address, const T& value,
                                             Site site = Site::here()) {
#if defined(__CUDACC__)
  *static_cast<T*>(__cvta_shared_to_generic(address)) = value;
#else
  *static_cast<T*>(emulator::shared_access(address, sizeof(T), emulator::Access::write, site)) = value;
#endif
}

// ---- 16-byte vectors

// 8 bf16, 4 floats, ...: what one thread moves with one instruction.
template <class T>
struct alignas(16) Vector {
  static constexpr int size = 16 / sizeof(T);
  T element[size];
  __device__ __forceinline__ T& operator[](int i) { return element[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return element[i]; }
};

// Global memory; the address must be a multiple of 16.
template <class T>
__device__ __forceinline__ Vector<T> load16(const T* address, Site site = Site::here()) {
#if !defined(__CUDACC__)
  emulator::global_access(address, 16, emulator::Access::read, site);
#endif
  return *reinterpret_cast<const Vector<T>*>(address);
}
template <class T>
__device__ __forceinline__ void store16(T* address, const Vector<T>& value, Site site = Site::here()) {
#if !defined(__CUDACC__)
  emulator::global_access(address, 16, emulator::Access::write, site);
#endif
  *reinterpret_cast<Vector<T>*>(address) = value;
}

// ---- bf16

__device__ __forceinline__ float to_float(bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
__device__ __forceinline__ float to_float(float value) {
  return value;
}
// The halves of a register with two bf16: element 0 is the lower half.
__device__ __forceinline__ float low_half(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_half(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

constexpr float log2_e = std::numbers::log2e_v<float>;  // exp(x) = ptx::ex2(x log2_e)

// ---- reductions, in a fixed order, so that equal inputs give equal bits

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Over each aligned group of `width` lanes; every lane gets the result.  All 32 lanes must call.
template <int width, class T, class Op>
__device__ __forceinline__ T group_reduce(T value, Op op, Site site = Site::here()) {
#pragma unroll
  for (int bits = width / 2; bits > 0; bits /= 2) {
#if defined(__CUDACC__)
    value = op(value, __shfl_xor_sync(full_warp, value, bits));
#else
    value = op(value, __shfl_xor_sync(full_warp, value, bits, site));
#endif
  }
  return value;
}
template <class T>
__device__ __forceinline__ T warp_sum(T value, Site site = Site::here()) {
  return group_reduce<warp_size>(value, Sum{}, site);
}
template <class T>
__device__ __forceinline__ T warp_max(T value, Site site = Site::here()) {
  return group_reduce<warp_size>(value, Max{}, site);
}

// __syncthreads() from inside a helper, reported at the place of its caller.
__device__ __forceinline__ void block_sync(Site site = Site::here()) {
#if defined(__CUDACC__)
  __syncthreads();
#else
  __syncthreads(site);
#endif
}

// Over the whole block; every thread gets the result.  blockDim.x is a multiple of 32.  `scratch` is room for
// block_reduce_bytes(threads) of shared memory, which may be used again at once, by the next call too.
template <class T>
constexpr int block_reduce_bytes(int threads) {
  return threads / warp_size * static_cast<int>(sizeof(T));
}
template <class T, class Op>
__device__ __forceinline__ T block_reduce(T value, SharedAddress scratch, Op op, Site site = Site::here()) {
  value = group_reduce<warp_size>(value, op, site);
  block_sync(site);  // whoever read `scratch` before is done
  if (lane_index() == 0) shared_store<T>(scratch + warp_index() * sizeof(T), value, site);
  block_sync(site);  // all partial results are visible
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  T total = shared_load<T>(scratch, site);
  for (int warp = 1; warp < warps; ++warp)
    total = op(total, shared_load<T>(scratch + warp * sizeof(T), site));
  return total;
}
template <class T>
__device__ __forceinline__ T block_sum(T value, SharedAddress scratch, Site site = Site::here()) {
  return block_reduce(value, scratch, Sum{}, site);
}
template <class T>
__device__ __forceinline__ T block_max(T value, SharedAddress scratch, Site site = Site::here()) {
  return block_reduce(value, scratch, Max{}, site);
}

// ---- launch (host)

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail_device("the GPU refused to ", what, ": ", cudaGetErrorString(status));
}

// kernel<<<grid, block, shared_bytes, stream>>>(arguments...),
// with arguments converted to the kernel's types.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            A&&... arguments) {
  constexpr size_t granted_without_asking = 48 * 1024;
  if (shared_bytes > granted_without_asking)
    check_cuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        "give a kernel its shared memory");
#if defined(__CUDACC__)
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...), "start a kernel");
#else
  emulator::enqueue(stream, emulator::bind(kernel, grid, block, shared_bytes, static_cast<P>(arguments)...));
#endif
}

// Parts of `size` that cover `count` elements.
constexpr int64_t ceil_div(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

inline bool is_aligned16(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}
inline void check_aligned(const char* name, const void* address) {
  check(is_aligned16(address), name, " is not aligned to 16 bytes");
}

// A grid of that many blocks, which must be one that a GPU accepts.
inline unsigned grid_of(int64_t blocks) {
  check(blocks < (int64_t{1} << 31), blocks, " blocks are more than a grid can have");
  return static_cast<unsigned>(blocks);
}

}  // namespace hearth
