// The kernels of conformance.h: each runs one instruction, or one protocol, on data from global memory and
// stores everything that came out.
#include "kernels/conformance/conformance.h"

#include <random>

#include "kernels/ptx_sm90.cuh"
#include "kernels/tensor_map.h"

namespace hearth::conformance {
namespace {

// Words of `words` into shared memory, in order, by the whole block, and back.
__device__ __forceinline__ void fill_shared(SharedAddress to, const uint32_t* words, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    shared_store<uint32_t>(to + 4 * i, words[i]);
  __syncthreads();
}
__device__ __forceinline__ void dump_shared(uint32_t* words, SharedAddress from, int count) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    words[i] = shared_load<uint32_t>(from + 4 * i);
}

// ---- sm_80

// in: four matrices of 8 rows of 16 bytes; out: register m of lane l at 4 l + m.
// The rows of matrix m are given in the order (5 r + m) % 8.
__device__ __forceinline__ SharedAddress matrix_row(int lane) {
  const int matrix = lane / 8;
  return shared_memory() + matrix * 128 + (5 * (lane % 8) + matrix) % 8 * 16;
}
template <bool trans>
__global__ void ldmatrix_kernel(const uint32_t* in, uint32_t* out) {
  fill_shared(shared_memory(), in, 128);
  uint32_t r[4];
  const SharedAddress row = matrix_row(lane_index());
  if constexpr (trans)
    ptx::ldmatrix_x4_trans(r, row);
  else
    ptx::ldmatrix_x4(r, row);
  for (int m = 0; m < 4; ++m)
    out[4 * lane_index() + m] = r[m];
}

// in: per lane a[4], b[2], d[4] (floats' bits); out: d[4] per lane.
__global__ void mma_kernel(const uint32_t* in, uint32_t* out) {
  const uint32_t* mine = in + 10 * lane_index();
  const uint32_t a[4] = {mine[0], mine[1], mine[2], mine[3]};
  float d[4];
  for (int i = 0; i < 4; ++i)
    d[i] = __uint_as_float(mine[6 + i]);
  ptx::mma_m16n8k16(d, a, mine[4], mine[5]);
  for (int i = 0; i < 4; ++i)
    out[4 * lane_index() + i] = __float_as_uint(d[i]);
}

// in: 2 x 32 pieces of 16 bytes, then 64 words whose lowest bit says whether the piece is copied or
// zero-filled. Two groups; what the first brought is stored before the second is waited for.
__global__ void cp_async_kernel(const uint32_t* in, uint32_t* out) {
  for (int group = 0; group < 2; ++group) {
    const int piece = 32 * group + lane_index();
    ptx::cp_async16(shared_memory() + 16 * piece, in + 4 * piece, in[256 + piece] & 1);
    ptx::cp_async_commit();
  }
  ptx::cp_async_wait<1>();
  dump_shared(out, shared_memory(), 128);
  ptx::cp_async_wait<0>();
  dump_shared(out + 128, shared_memory() + 512, 128);
}

// in: pairs of floats; out: both as bf16, then the first alone.
__global__ void convert_kernel(const uint32_t* in, uint32_t* out) {
  const float low = __uint_as_float(in[2 * threadIdx.x]);
  const float high = __uint_as_float(in[2 * threadIdx.x + 1]);
  out[2 * threadIdx.x] = ptx::cvt_bf16x2(low, high);
  out[2 * threadIdx.x + 1] = ptx::cvt_bf16(low).bits;
}

// in: 32 words; out: what each lane gets from __shfl_xor_sync by 1, 2, 4, 8, 16 and __shfl_up_sync by 1
// and 8.
__global__ void shuffle_kernel(const uint32_t* in, uint32_t* out) {
  const uint32_t mine = in[lane_index()];
  uint32_t* to = out + 7 * lane_index();
  for (int i = 0; i < 5; ++i)
    to[i] = __shfl_xor_sync(full_warp, mine, 1 << i);
  to[5] = __shfl_up_sync(full_warp, mine, 1);
  to[6] = __shfl_up_sync(full_warp, mine, 8);
}

// Four rounds: warp 0 writes 32 words and arrives at a named barrier, warp 1 waits there and reads them, and
// back. in: 4 x 32 words; out: what warp 1 read.
__global__ void named_barrier_kernel(const uint32_t* in, uint32_t* out) {
  constexpr int full = 1, empty = 2, both = 64;
  const int lane = lane_index();
  const SharedAddress word = shared_memory() + 4 * lane;
  for (int round = 0; round < 4; ++round) {
    if (warp_index() == 0) {
      if (round > 0) ptx::bar_sync(empty, both);
      shared_store<uint32_t>(word, in[32 * round + lane]);
      ptx::bar_arrive(full, both);
    } else {
      ptx::bar_sync(full, both);
      out[32 * round + lane] = shared_load<uint32_t>(shared_memory() + 4 * (31 - lane));
      if (round < 3) ptx::bar_arrive(empty, both);
    }
  }
}

// ---- sm_90a

// in: register m of lane l at 4 l + m; out: the four matrices.
__global__ void stmatrix_kernel(const uint32_t* in, uint32_t* out) {
  const uint32_t* mine = in + 4 * lane_index();
  const uint32_t r[4] = {mine[0], mine[1], mine[2], mine[3]};
  ptx::stmatrix_x4(matrix_row(lane_index()), r);
  dump_shared(out, shared_memory(), 128);
}

// As named_barrier_kernel, with mbarriers whose phases alternate.
__global__ void mbarrier_kernel(const uint32_t* in, uint32_t* out) {
  const SharedAddress full = shared_memory(), empty = full + 8;
  const int lane = lane_index();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(full, 32);
    ptx::mbarrier_init(empty, 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const SharedAddress words = shared_memory() + 128;
  for (uint32_t round = 0; round < 4; ++round) {
    if (warp_index() == 0) {
      ptx::mbarrier_wait(empty, round % 2 ^ 1);  // at once in round 0
      shared_store<uint32_t>(words + 4 * lane, in[32 * round + lane]);
      ptx::mbarrier_arrive(full);
    } else {
      ptx::mbarrier_wait(full, round % 2);
      out[32 * round + lane] = shared_load<uint32_t>(words + 4 * (31 - lane));
      ptx::mbarrier_arrive(empty);
    }
  }
}

constexpr int box_bytes = TmaShape::box_rows * TmaShape::box_columns * 2;

// out: the box at `corner`, as it lies in shared memory.
__global__ void tma_load_kernel(const __grid_constant__ TensorMap map, Corner corner, uint32_t* out) {
  const SharedAddress box = shared_memory(), full = box + box_bytes;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(full, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(full, box_bytes);
    ptx::tma_load_2d(box, map, full, corner.column, corner.row);
  }
  ptx::mbarrier_wait(full, 0);
  dump_shared(out, box, box_bytes / 4);
}

// in: the box as it lies in shared memory; what of it is inside goes to the matrix.
__global__ void tma_store_kernel(const __grid_constant__ TensorMap map, Corner corner, const uint32_t* in) {
  fill_shared(shared_memory(), in, box_bytes / 4);
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::tma_store_2d(map, shared_memory(), corner.column, corner.row);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
}

template <int n, bool a_mn, bool b_mn>
__device__ __forceinline__ void multiply(float (&d)[n / 2], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (n == 64) ptx::wgmma_m64n64k16<a_mn, b_mn>(d, a, b, accumulate);
  if constexpr (n == 256) ptx::wgmma_m64n256k16<a_mn, b_mn>(d, a, b, accumulate);
}

constexpr int a_words = 64 * wgmma_k / 2;

// in: the tiles of A and B as they lie in shared memory; out: the n/2 accumulators, thread after thread.
template <int n, bool a_mn, bool b_mn>
__global__ void __launch_bounds__(128, 1) wgmma_kernel(const uint32_t* in, uint32_t* out) {
  const SharedAddress a_tile = shared_memory();
  const SharedAddress b_tile = a_tile + 4 * a_words;
  constexpr int panels = (n + 63) / 64;  // of an MN-major tile
  fill_shared(a_tile, in, a_words + panels * 64 * wgmma_k / 2);
  ptx::fence_proxy_async();
  __syncthreads();
  float d[n / 2];
  for (int i = 0; i < n / 2; ++i)
    d[i] = -1;  // the first step does not accumulate
  constexpr uint32_t panel_bytes = 64 * wgmma_k * 2;
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < wgmma_k / 16; ++step) {
    const uint64_t a_at = ptx::matrix_descriptor(a_tile + step * (a_mn ? 2048 : 32), panel_bytes);
    const uint64_t b_at = ptx::matrix_descriptor(b_tile + step * (b_mn ? 2048 : 32), panel_bytes);
    multiply<n, a_mn, b_mn>(d, a_at, b_at, step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  for (int i = 0; i < n / 2; ++i)
    out[n / 2 * threadIdx.x + i] = __float_as_uint(d[i]);
}

// ---- the host's side

// Words of device memory.
class Words {
 public:
  explicit Words(const std::vector<uint32_t>& values) : count_(values.size()) {
    check_cuda(cudaMalloc(&data_, 4 * count_), "allocate");
    check_cuda(cudaMemcpy(data_, values.data(), 4 * count_, cudaMemcpyHostToDevice), "copy");
  }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  ~Words() { cudaFree(data_); }
  uint32_t* data() const { return data_; }
  std::vector<uint32_t> to_host() const {
    check_cuda(cudaDeviceSynchronize(), "run a kernel of the conformance test");
    std::vector<uint32_t> values(count_);
    check_cuda(cudaMemcpy(values.data(), data_, 4 * count_, cudaMemcpyDeviceToHost), "copy");
    return values;
  }

 private:
  size_t count_;
  uint32_t* data_ = nullptr;
};

// Marks what no instruction wrote.
constexpr uint32_t untouched = 0xabababab;

class Runner {
 public:
  std::vector<Record> records;

  // kernel(in, out) by one block.
  void record(const std::string& name, void (*kernel)(const uint32_t*, uint32_t*), int threads, size_t shared,
              std::vector<uint32_t> input, size_t outputs) {
    const Words in(input), out(std::vector<uint32_t>(outputs, untouched));
    launch(kernel, 1, static_cast<unsigned>(threads), shared, nullptr, in.data(), out.data());
    records.push_back({name, std::move(input), out.to_host()});
  }
  void tma(bool swizzled);
  template <int n>
  void wgmma();

  std::vector<uint32_t> words(size_t count) {
    std::vector<uint32_t> values(count);
    for (uint32_t& value : values)
      value = static_cast<uint32_t>(random_());
    return values;
  }
  // Two bf16 whole numbers from -8 to 8 in each word.
  std::vector<uint32_t> integers(size_t count) {
    std::vector<uint32_t> values(count);
    for (uint32_t& value : values)
      value = integer() | integer() << 16;
    return values;
  }
  std::vector<uint32_t> for_mma();
  std::vector<uint32_t> for_conversion();

 private:
  uint32_t integer() { return bf16(static_cast<float>(static_cast<int>(random_() % 17) - 8)).bits; }
  std::mt19937_64 random_{20};
};

std::vector<uint32_t> Runner::for_mma() {
  std::vector<uint32_t> values;
  for (int lane = 0; lane < warp_size; ++lane) {
    for (uint32_t pair : integers(6))
      values.push_back(pair);
    for (int i = 0; i < 4; ++i)
      values.push_back(integer() << 16);  // a bf16's bits are a float's upper half
  }
  return values;
}

// Random bits, and ties, limits and subnormals.  No NaN: its payload is nobody's business.
std::vector<uint32_t> Runner::for_conversion() {
  std::vector<uint32_t> values = words(512);
  const uint32_t special[] = {0x3f808000, 0x3f818000, 0xbf808001, 0x3f807fff, 0x7f7fffff, 0x7f800000,
                              0xff800000, 0x00008000, 0x00018000, 0x007fffff, 0x80000001, 0x00000000};
  size_t i = 0;
  for (uint32_t bits : special)
    values[i++] = bits;
  for (uint32_t& bits : values)
    if ((bits & 0x7fffffff) > 0x7f800000) bits &= 0xbfffffff;
  return values;
}

void Runner::tma(bool swizzled) {
  using S = TmaShape;
  const std::string kind = swizzled ? "128-byte swizzle" : "no swizzle";
  const auto map_of = [&](const Words& matrix) {
    return kernels::make_tensor_map(reinterpret_cast<const bf16*>(matrix.data()), S::rows, S::columns,
                                    S::stride, S::box_rows, S::box_columns, swizzled);
  };
  const auto name = [&](const char* what, Corner c) {
    return std::string(what) + " " + kind + " at " + std::to_string(c.row) + "," + std::to_string(c.column);
  };
  constexpr size_t matrix_words = S::rows * S::stride / 2;
  for (Corner corner : tma_corners()) {
    std::vector<uint32_t> input = words(matrix_words);
    const Words matrix(input), out(std::vector<uint32_t>(box_bytes / 4, untouched));
    launch(tma_load_kernel, 1, 32, box_bytes + 8, nullptr, map_of(matrix), corner, out.data());
    records.push_back({name("tma_load_2d", corner), std::move(input), out.to_host()});
  }
  for (Corner corner : tma_corners()) {
    std::vector<uint32_t> input = words(box_bytes / 4);
    const Words matrix(std::vector<uint32_t>(matrix_words, untouched)), in(input);
    launch(tma_store_kernel, 1, 32, box_bytes, nullptr, map_of(matrix), corner, in.data());
    records.push_back({name("tma_store_2d", corner), std::move(input), matrix.to_host()});
  }
}

template <int n>
void Runner::wgmma() {
  constexpr int b_words = (n + 63) / 64 * 64 * wgmma_k / 2;
  constexpr size_t shared = 4 * (a_words + b_words);
  const auto one = [&](const char* majors, void (*kernel)(const uint32_t*, uint32_t*)) {
    record("wgmma_m64n" + std::to_string(n) + "k16 " + majors, kernel, 128, shared,
           integers(a_words + b_words), 64 * n);
  };
  one("A K-major, B K-major", wgmma_kernel<n, false, false>);
  one("A K-major, B MN-major", wgmma_kernel<n, false, true>);
  one("A MN-major, B K-major", wgmma_kernel<n, true, false>);
  one("A MN-major, B MN-major", wgmma_kernel<n, true, true>);
}

}  // namespace

std::vector<Record> run(bool hopper) {
  Runner r;
  r.record("ldmatrix_x4", ldmatrix_kernel<false>, 32, 512, r.words(128), 128);
  r.record("ldmatrix_x4_trans", ldmatrix_kernel<true>, 32, 512, r.words(128), 128);
  r.record("mma_m16n8k16", mma_kernel, 32, 0, r.for_mma(), 128);
  r.record("cp_async16", cp_async_kernel, 32, 1024, r.words(320), 256);
  r.record("cvt_bf16", convert_kernel, 256, 0, r.for_conversion(), 512);
  r.record("shuffles", shuffle_kernel, 32, 0, r.words(32), 224);
  r.record("bar_sync and bar_arrive", named_barrier_kernel, 64, 128, r.words(128), 128);
  if (!hopper) return std::move(r.records);
  r.record("stmatrix_x4", stmatrix_kernel, 32, 512, r.words(128), 128);
  r.record("mbarrier", mbarrier_kernel, 64, 256, r.words(128), 128);
  r.tma(false);
  r.tma(true);
  r.wgmma<64>();
  r.wgmma<256>();
  return std::move(r.records);
}

}  // namespace hearth::conformance
