// Matrix products with mma.sync: C [M, N] = A [M, K] B [N, K]^T, bf16 operands, fp32 accumulation.
//
// Tile 128 x 128 x 32 per block of 4 warps, each warp 64 x 64 (4 x 8 accumulators of 16 x 8: 128 registers).
// Per step of k = 16 a warp does 8 ldmatrix.x4 for 32 mma.sync, so shared memory is half as busy as the
// tensor cores.  Operands come by cp.async through a ring of 4 stages.
//
// Shared memory (64 KiB):   stage 0: A 128x32 | B 128x32 | stage 1 ... | stage 3
// and after the last product, over it:   C 128x128 fp32, so that global memory is touched 16 bytes a thread.
// Registers: 128 accumulators + 32 fragments + addresses, about 220; two blocks per multiprocessor.
#include "kernels/kernels.h"
#include "kernels/tiles.cuh"

namespace hearth::kernels {
namespace {

constexpr int block_m = 128, block_n = 128, block_k = 32;
constexpr int warps_m = 2, warps_n = 2;
constexpr int warp_m = block_m / warps_m, warp_n = block_n / warps_n;
constexpr int stages = 4;
constexpr int threads = warps_m * warps_n * warp_size;
constexpr int tiles_m = warp_m / 16, tiles_n = warp_n / 8;

using TileA = SharedTile<block_m, block_k>;
using TileB = SharedTile<block_n, block_k>;
constexpr int stage_bytes = TileA::bytes + TileB::bytes;
constexpr int shared_bytes = stages * stage_bytes;
static_assert(block_m * block_n * static_cast<int>(sizeof(float)) <= shared_bytes,
              "C is staged over the ring");

template <class Output>
struct Problem {
  const bf16* a;
  const bf16* b;
  Output* c;
  int64_t m, n, k, lda, ldb, ldc;
};

using Accumulators = float[tiles_m][tiles_n][4];

// The product of one warp's rows and columns with one stage.
__device__ __forceinline__ void multiply_stage(Accumulators& acc, const TileA& a, const TileB& b, int m,
                                               int n) {
#pragma unroll
  for (int k = 0; k < block_k; k += 16) {
    uint32_t fragment_a[tiles_m][4], fragment_b[tiles_n / 2][4];
#pragma unroll
    for (int i = 0; i < tiles_m; ++i)
      load_a<true>(fragment_a[i], a, m + 16 * i, k);
#pragma unroll
    for (int j = 0; j < tiles_n / 2; ++j)
      load_b<true>(fragment_b[j], b, n + 16 * j, k);
#pragma unroll
    for (int i = 0; i < tiles_m; ++i)
#pragma unroll
      for (int j = 0; j < tiles_n; ++j)
        ptx::mma_m16n8k16(acc[i][j], fragment_a[i], fragment_b[j / 2][2 * (j % 2)],
                          fragment_b[j / 2][2 * (j % 2) + 1]);
  }
}

// Four floats of the staged C.  Chunks are permuted so that the 8-byte writes of a fragment meet no
// conflicts.
__device__ __forceinline__ SharedAddress staged(int row, int column) {
  const int chunk = column / 4 ^ (row & 3) << 1;
  return shared_memory() + static_cast<SharedAddress>((row * (block_n / 4) + chunk) * 16 + column % 4 * 4);
}

__device__ __forceinline__ void stage_accumulators(const Accumulators& acc, int m, int n) {
#pragma unroll
  for (int i = 0; i < tiles_m; ++i)
#pragma unroll
    for (int j = 0; j < tiles_n; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m + 16 * i + accumulator_row(2 * half);
        const int column = n + 8 * j + accumulator_column(0);
        shared_store(staged(row, column), float2{acc[i][j][2 * half], acc[i][j][2 * half + 1]});
      }
}

__device__ __forceinline__ void store8(float* to, const float4& low, const float4& high) {
  store16(to, Vector<float>{{low.x, low.y, low.z, low.w}});
  store16(to + 4, Vector<float>{{high.x, high.y, high.z, high.w}});
}
__device__ __forceinline__ void store8(bf16* to, const float4& low, const float4& high) {
  const uint4 pairs = {ptx::cvt_bf16x2(low.x, low.y), ptx::cvt_bf16x2(low.z, low.w),
                       ptx::cvt_bf16x2(high.x, high.y), ptx::cvt_bf16x2(high.z, high.w)};
  store16(reinterpret_cast<uint32_t*>(to), Vector<uint32_t>{{pairs.x, pairs.y, pairs.z, pairs.w}});
}

template <class Output>
__global__ void __launch_bounds__(threads, 2) gemm_nt_kernel(const Problem<Output> p) {
  const int thread = static_cast<int>(threadIdx.x);
  const int m = warp_index() / warps_n * warp_m;  // this warp's corner of the block's tile
  const int n = warp_index() % warps_n * warp_n;
  const int64_t block_row = static_cast<int64_t>(blockIdx.x) * block_m;
  const int64_t block_column = static_cast<int64_t>(blockIdx.y) * block_n;

  auto tile_a = [&](int64_t step) {
    return TileA{shared_memory() + static_cast<SharedAddress>(step % stages) * stage_bytes};
  };
  auto tile_b = [&](int64_t step) { return TileB{tile_a(step).base + TileA::bytes}; };
  auto copy_step = [&](int64_t step) {
    const int64_t k = step * block_k;
    copy_tile_async<threads>(tile_a(step), p.a + block_row * p.lda + k, p.lda, p.m - block_row, p.k - k,
                             thread);
    copy_tile_async<threads>(tile_b(step), p.b + block_column * p.ldb + k, p.ldb, p.n - block_column, p.k - k,
                             thread);
  };

  const int64_t steps = ceil_div(p.k, block_k);
  for (int step = 0; step < stages - 1; ++step) {
    if (step < steps) copy_step(step);
    ptx::cp_async_commit();  // empty groups too, so that the count of groups is the count of steps
  }

  Accumulators acc = {};
  for (int64_t step = 0; step < steps; ++step) {
    ptx::cp_async_wait<stages - 2>();
    __syncthreads();  // (a) the tiles of `step` are visible to all (b) all are done with the tiles of step -
                      // 1
    if (step + stages - 1 < steps) copy_step(step + stages - 1);
    ptx::cp_async_commit();
    multiply_stage(acc, tile_a(step), tile_b(step), m, n);
  }

  __syncthreads();  // all are done with the ring
  stage_accumulators(acc, m, n);
  __syncthreads();  // C is staged
  for (int i = thread; i < block_m * block_n / 8; i += threads) {
    const int row = i / (block_n / 8), column = i % (block_n / 8) * 8;
    if (block_row + row >= p.m || block_column + column >= p.n) continue;
    const float4 low = shared_load<float4>(staged(row, column));
    const float4 high = shared_load<float4>(staged(row, column + 4));
    store8(p.c + (block_row + row) * p.ldc + block_column + column, low, high);
  }
}

template <class Output>
void launch_gemm_nt(const Problem<Output>& p, cudaStream_t stream) {
  if (p.m == 0 || p.n == 0) return;
  check(p.n % 8 == 0 && p.k % 8 == 0 && p.lda % 8 == 0 && p.ldb % 8 == 0 && p.ldc % 8 == 0,
        "gemm: n, k and the row strides must be multiples of 8, not ", p.n, ", ", p.k, ", ", p.lda, ", ",
        p.ldb, ", ", p.ldc);
  const dim3 grid(static_cast<unsigned>(ceil_div(p.m, block_m)),
                  static_cast<unsigned>(ceil_div(p.n, block_n)));
  launch(gemm_nt_kernel<Output>, grid, threads, shared_bytes, stream, p);
}

}  // namespace

void gemm_nt(const bf16* a, const bf16* b, bf16* c, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
             int64_t ldc, cudaStream_t stream) {
  launch_gemm_nt<bf16>({a, b, c, m, n, k, lda, ldb, ldc}, stream);
}
void gemm_nt(const bf16* a, const bf16* b, float* c, int64_t m, int64_t n, int64_t k, int64_t lda,
             int64_t ldb, int64_t ldc, cudaStream_t stream) {
  launch_gemm_nt<float>({a, b, c, m, n, k, lda, ldb, ldc}, stream);
}

}  // namespace hearth::kernels
