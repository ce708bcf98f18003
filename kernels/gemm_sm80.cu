// Matrix products with mma.sync, for every GPU of sm_80 and up: C [m, n] = A B, bf16 operands, fp32 sums.
//
// Mathematics: gemm.h.  The three products are one kernel with two booleans: is A (is B) stored with k
// running along its rows ("k-major")?  If not, its fragments are transposed while they are loaded.
//
// Launch.  A block computes one tile of C, or, split-K, its sum over one part of k; 4 warps.
//   large tile  128 x 128 x 32, 64 x 64 per warp (4 x 8 accumulators of 16 x 8: 128 registers).  Per step of
//               k = 16 a warp does 8 ldmatrix.x4 for 32 mma.sync, so shared memory is half as busy as the
//               tensor cores.  About 240 registers, two blocks per multiprocessor.
//   small tile  64 x 64 x 32, 32 x 32 per warp, where large tiles would be few or mostly empty.
// Operands come by cp.async through a ring of 4 stages; what lies outside a matrix becomes zeros.
//
// Shared memory:   ring of 4 x (A | B): 64 KiB, small 32 KiB   | column sums [groups][rows of the tile] 4 KiB
// and after the last product, over the ring:   C in fp32, so that global memory is touched 16 bytes a thread.
//
// weight_gradient has few tiles and a long k.  k is cut into parts; each part's block stores fp32 partial
// sums to the workspace, and a second kernel adds them to the gradient in the order of the parts.  The column
// sums of dy come from the A tiles while they are in shared memory: of the tiles of one row of C, each adds
// the steps that are its turn, so all blocks do equal work; their partial sums are added by the same kernel.
//
// In order: copies of the first three steps start; each step waits for its tiles, starts the copies of the
// step three further on, multiplies; C is staged in shared memory; the epilogue takes it to global memory.
//
// Bytes moved: A and B once per row and column of tiles, mostly from L2, since blocks that run together
// share them (8 rows of tiles form a group); C, pre and bias once.
#include <algorithm>
#include <type_traits>

#include "kernels/gemm_common.cuh"
#include "kernels/tiles.cuh"

namespace hearth::kernels {
namespace {

template <int block_m_, int block_n_, int warps_m_, int warps_n_, int blocks_per_multiprocessor_>
struct Tiling {
  static constexpr int block_m = block_m_, block_n = block_n_, block_k = 32;
  static constexpr int warps_m = warps_m_, warps_n = warps_n_;
  static constexpr int warp_m = block_m / warps_m, warp_n = block_n / warps_n;
  static constexpr int tiles_m = warp_m / 16, tiles_n = warp_n / 8;  // accumulators of a warp
  static constexpr int threads = warps_m * warps_n * warp_size;
  static constexpr int blocks_per_multiprocessor = blocks_per_multiprocessor_;
  static constexpr int stages = 4;
  static constexpr int a_bytes = block_m * block_k * static_cast<int>(sizeof(bf16));
  static constexpr int b_bytes = block_n * block_k * static_cast<int>(sizeof(bf16));
  static constexpr int stage_bytes = a_bytes + b_bytes;
  static constexpr int ring_bytes = stages * stage_bytes;
  // Column sums: a thread adds up one chunk (8 columns of dy) of every groups-th row.
  static constexpr int groups = threads / (block_m / chunk_elements);
  static constexpr int sums_bytes = groups * block_m * static_cast<int>(sizeof(float));
  static_assert(block_m * block_n * static_cast<int>(sizeof(float)) <= ring_bytes, "C is staged on the ring");
  static_assert(block_k % groups == 0 && block_m <= threads);
  static_assert(ring_bytes + sums_bytes <= 99 * 1024, "what a block may have on sm_86, 89 and 120");
};
struct Large : Tiling<128, 128, 2, 2, 2> {};
struct Small : Tiling<64, 64, 2, 2, 4> {};

template <class T>
using Accumulators = float[T::tiles_m][T::tiles_n][4];

// The product of one warp's rows and columns with one stage.
template <class T, bool a_k_major, bool b_k_major, class TileA, class TileB>
__device__ __forceinline__ void multiply_stage(Accumulators<T>& acc, const TileA& a, const TileB& b, int m,
                                               int n) {
#pragma unroll
  for (int k = 0; k < T::block_k; k += 16) {
    uint32_t fragment_a[T::tiles_m][4], fragment_b[T::tiles_n / 2][4];
#pragma unroll
    for (int i = 0; i < T::tiles_m; ++i)
      load_a<a_k_major>(fragment_a[i], a, m + 16 * i, k);
#pragma unroll
    for (int j = 0; j < T::tiles_n / 2; ++j)
      load_b<b_k_major>(fragment_b[j], b, n + 16 * j, k);
#pragma unroll
    for (int i = 0; i < T::tiles_m; ++i)
#pragma unroll
      for (int j = 0; j < T::tiles_n; ++j)
        ptx::mma_m16n8k16(acc[i][j], fragment_a[i], fragment_b[j / 2][2 * (j % 2)],
                          fragment_b[j / 2][2 * (j % 2) + 1]);
  }
}

// ---- column sums of an A tile [k][m]

// This thread's 8 running sums: columns 8 chunk .. 8 chunk + 7 of the rows group, group + groups, ...
template <class T>
__device__ __forceinline__ SharedAddress my_sums() {
  return shared_memory() + T::ring_bytes + threadIdx.x * 8 * static_cast<SharedAddress>(sizeof(float));
}
template <class T>
__device__ __forceinline__ void clear_column_sums() {
  shared_store(my_sums<T>(), Vector<float>{});
  shared_store(my_sums<T>() + 16, Vector<float>{});
}
template <class T, class TileA>
__device__ __forceinline__ void add_column_sums(const TileA& a) {
  constexpr int chunks = T::block_m / chunk_elements;
  const int chunk = static_cast<int>(threadIdx.x) % chunks;
  const int group = static_cast<int>(threadIdx.x) / chunks;
  auto low = shared_load<Vector<float>>(my_sums<T>());
  auto high = shared_load<Vector<float>>(my_sums<T>() + 16);
#pragma unroll
  for (int row = 0; row < T::block_k; row += T::groups) {
    const auto x = shared_load<Vector<uint32_t>>(a.at(row + group, chunk));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      low[2 * i] += low_half(x[i]);
      low[2 * i + 1] += high_half(x[i]);
      high[2 * i] += low_half(x[i + 2]);
      high[2 * i + 1] += high_half(x[i + 2]);
    }
  }
  shared_store(my_sums<T>(), low);
  shared_store(my_sums<T>() + 16, high);
}
// The sum of column `column`, after a barrier.
template <class T>
__device__ __forceinline__ float column_sum(int column) {
  float sum = 0;
#pragma unroll
  for (int group = 0; group < T::groups; ++group)
    sum += shared_load<float>(shared_memory() + T::ring_bytes + (group * T::block_m + column) * 4);
  return sum;
}

// ---- epilogue

// Element (row, column) of the staged C.  Chunks of 4 floats are permuted so that the 8-byte writes of a
// fragment meet no conflicts.
template <class T>
__device__ __forceinline__ SharedAddress staged(int row, int column) {
  const int chunk = column / 4 ^ (row & 3) << 1;
  return shared_memory() + static_cast<SharedAddress>((row * (T::block_n / 4) + chunk) * 16 + column % 4 * 4);
}
template <class T>
__device__ __forceinline__ void stage_accumulators(const Accumulators<T>& acc, int m, int n) {
#pragma unroll
  for (int i = 0; i < T::tiles_m; ++i)
#pragma unroll
    for (int j = 0; j < T::tiles_n; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m + 16 * i + accumulator_row(2 * half);
        const int column = n + 8 * j + accumulator_column(0);
        shared_store(staged<T>(row, column), float2{acc[i][j][2 * half], acc[i][j][2 * half + 1]});
      }
}

// 8 neighbours of one row: what a thread handles at once.
struct Eight {
  float x[8];
};
__device__ __forceinline__ Eight load8(const bf16* from) {
  const Vector<uint32_t> pairs = load16(reinterpret_cast<const uint32_t*>(from));
  Eight v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v.x[2 * i] = low_half(pairs[i]);
    v.x[2 * i + 1] = high_half(pairs[i]);
  }
  return v;
}
__device__ __forceinline__ Vector<uint32_t> rounded(const Eight& v) {
  return {{ptx::cvt_bf16x2(v.x[0], v.x[1]), ptx::cvt_bf16x2(v.x[2], v.x[3]), ptx::cvt_bf16x2(v.x[4], v.x[5]),
           ptx::cvt_bf16x2(v.x[6], v.x[7])}};
}
__device__ __forceinline__ void store8(bf16* to, const Vector<uint32_t>& pairs) {
  store16(reinterpret_cast<uint32_t*>(to), pairs);
}
__device__ __forceinline__ Vector<uint32_t> gelu_of(const Vector<uint32_t>& pre) {
  return {{gelu_of_pair(pre[0]), gelu_of_pair(pre[1]), gelu_of_pair(pre[2]), gelu_of_pair(pre[3])}};
}

// An epilogue turns 8 sums at (row, column), hence the names, into what is stored.  read() fetches what it
// needs from global memory, so that a thread can have several rows in flight before it writes the first.
struct Place8 {
  int split;
  int64_t row, column;
};

struct Store8 {
  using Input = NoInput;
  static __device__ __forceinline__ Input read(const GemmArgs&, const Plan&, const Place8&) { return {}; }
  static __device__ __forceinline__ void write(const GemmArgs& p, const Plan&, const Place8& at,
                                               const Eight& v, const Input&) {
    store8(p.c + at.row * p.c_stride + at.column, rounded(v));
  }
};

struct Bias8 {
  using Input = Eight;
  static __device__ __forceinline__ Input read(const GemmArgs& p, const Plan&, const Place8& at) {
    return p.bias ? load8(p.bias + at.column) : Eight{};
  }
  static __device__ __forceinline__ Vector<uint32_t> sum(Eight v, const Eight& bias) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      v.x[i] += bias.x[i];
    return rounded(v);
  }
  static __device__ __forceinline__ void write(const GemmArgs& p, const Plan&, const Place8& at,
                                               const Eight& v, const Input& bias) {
    store8(p.c + at.row * p.c_stride + at.column, sum(v, bias));
  }
};

struct BiasGelu8 : Bias8 {
  static __device__ __forceinline__ void write(const GemmArgs& p, const Plan&, const Place8& at,
                                               const Eight& v, const Input& bias) {
    const Vector<uint32_t> pre = sum(v, bias);
    if (p.pre) store8(p.pre + at.row * p.pre_stride + at.column, pre);
    store8(p.c + at.row * p.c_stride + at.column, gelu_of(pre));
  }
};

struct GeluGradient8 {
  using Input = Eight;
  static __device__ __forceinline__ Input read(const GemmArgs& p, const Plan&, const Place8& at) {
    return load8(p.factor_pre + at.row * p.pre_stride + at.column);
  }
  static __device__ __forceinline__ void write(const GemmArgs& p, const Plan&, const Place8& at, Eight v,
                                               const Input& pre) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      v.x[i] *= gelu_derivative(pre.x[i]);
    store8(p.c + at.row * p.c_stride + at.column, rounded(v));
  }
};

// The whole sum is added to the gradient; a part of it goes to the workspace.
struct Accumulate8 {
  struct Input {
    Vector<float> low, high;
  };
  static __device__ __forceinline__ float* target(const GemmArgs& p, const Plan& plan, const Place8& at) {
    return plan.splits == 1 ? p.accumulator + at.row * p.c_stride + at.column
                            : plan.partials + (at.split * p.m + at.row) * p.n + at.column;
  }
  static __device__ __forceinline__ Input read(const GemmArgs& p, const Plan& plan, const Place8& at) {
    if (plan.splits > 1) return {};
    return {load16(target(p, plan, at)), load16(target(p, plan, at) + 4)};
  }
  static __device__ __forceinline__ void write(const GemmArgs& p, const Plan& plan, const Place8& at,
                                               const Eight& v, Input before) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      before.low[i] += v.x[i];
      before.high[i] += v.x[i + 4];
    }
    store16(target(p, plan, at), before.low);
    store16(target(p, plan, at) + 4, before.high);
  }
};

// ---- the kernel

template <class T, bool a_k_major, bool b_k_major, class Epilogue>
__global__ void __launch_bounds__(T::threads, T::blocks_per_multiprocessor)
    gemm_kernel(const GemmArgs p, const Plan plan) {
  using TileA =
      std::conditional_t<a_k_major, SharedTile<T::block_m, T::block_k>, SharedTile<T::block_k, T::block_m>>;
  using TileB =
      std::conditional_t<b_k_major, SharedTile<T::block_n, T::block_k>, SharedTile<T::block_k, T::block_n>>;
  const int thread = static_cast<int>(threadIdx.x);
  const int m = warp_index() / T::warps_n * T::warp_m;  // this warp's corner of the tile
  const int n = warp_index() % T::warps_n * T::warp_n;
  const Work work = work_of<8>(blockIdx.x, plan);
  const int64_t block_row = static_cast<int64_t>(work.tile_row) * T::block_m;
  const int64_t block_column = static_cast<int64_t>(work.tile_column) * T::block_n;

  auto tile_a = [&](int step) {
    return TileA{shared_memory() + static_cast<SharedAddress>(step % T::stages) * T::stage_bytes};
  };
  auto tile_b = [&](int step) { return TileB{tile_a(step).base + T::a_bytes}; };
  auto copy_step = [&](int step) {
    const int64_t k = static_cast<int64_t>(step) * T::block_k;
    if constexpr (a_k_major)
      copy_tile_async<T::threads>(tile_a(step), p.a + block_row * p.a_stride + k, p.a_stride, p.m - block_row,
                                  p.k - k, thread);
    else
      copy_tile_async<T::threads>(tile_a(step), p.a + k * p.a_stride + block_row, p.a_stride, p.k - k,
                                  p.m - block_row, thread);
    if constexpr (b_k_major)
      copy_tile_async<T::threads>(tile_b(step), p.b + block_column * p.b_stride + k, p.b_stride,
                                  p.n - block_column, p.k - k, thread);
    else
      copy_tile_async<T::threads>(tile_b(step), p.b + k * p.b_stride + block_column, p.b_stride, p.k - k,
                                  p.n - block_column, thread);
  };

  constexpr bool sums_columns = std::is_same_v<Epilogue, Accumulate8> && !a_k_major;
  if constexpr (sums_columns) {
    if (p.column_sums) clear_column_sums<T>();
  }
  for (int step = work.begin; step < work.begin + T::stages - 1; ++step) {
    if (step < work.end) copy_step(step);
    ptx::cp_async_commit();  // empty groups too, so that the count of groups is the count of steps
  }

  Accumulators<T> acc = {};
  uint32_t turn = work.tile_column;  // steps until this block adds column sums
  for (int step = work.begin; step < work.end; ++step) {
    ptx::cp_async_wait<T::stages - 2>();
    __syncthreads();  // (a) all see the tiles of `step` (b) all are done with those of step - 1
    if (step + T::stages - 1 < work.end) copy_step(step + T::stages - 1);
    ptx::cp_async_commit();
    multiply_stage<T, a_k_major, b_k_major>(acc, tile_a(step), tile_b(step), m, n);
    if constexpr (sums_columns) {
      if (p.column_sums && turn == 0) add_column_sums<T>(tile_a(step));
      turn = turn == 0 ? plan.columns - 1 : turn - 1;
    }
  }

  __syncthreads();  // all are done with the ring, and the column sums are complete
  stage_accumulators<T>(acc, m, n);
  if constexpr (sums_columns) {
    if (p.column_sums && thread < T::block_m && block_row + thread < p.m)
      plan.partial_sums[(static_cast<int64_t>(work.split) * plan.columns + work.tile_column) * p.m +
                        block_row + thread] = column_sum<T>(thread);
  }
  __syncthreads();  // C is staged

  constexpr int at_once = 4;  // rows that a thread has in flight
  constexpr int threads_per_row = T::block_n / 8, rows_apart = T::threads / threads_per_row;
  static_assert(T::block_m % (at_once * rows_apart) == 0);
  const int column = thread % threads_per_row * 8;
  if (block_column + column >= p.n) return;
  for (int first = thread / threads_per_row; first < T::block_m; first += at_once * rows_apart) {
    typename Epilogue::Input input[at_once] = {};
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const Place8 at = {work.split, block_row + first + i * rows_apart, block_column + column};
      if (at.row < p.m) input[i] = Epilogue::read(p, plan, at);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int row = first + i * rows_apart;
      const Place8 at = {work.split, block_row + row, block_column + column};
      if (at.row >= p.m) continue;
      const auto low = shared_load<Vector<float>>(staged<T>(row, column));
      const auto high = shared_load<Vector<float>>(staged<T>(row, column + 4));
      Epilogue::write(p, plan, at, {{low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]}},
                      input[i]);
    }
  }
}

// ---- launcher

// Blocks of either tile that the GPU is expected to run at once: two large ones on each of 132
// multiprocessors.
constexpr SplitModel split_model = {264, 8, 1 / 16.0};

GemmTile tile_for(const GemmArgs& p) {
  if (p.tile != GemmTile::automatic) return p.tile;
  int64_t blocks = ceil_div(p.m, Large::block_m) * ceil_div(p.n, Large::block_n);
  if (p.product == Product::weight_gradient)
    blocks *= std::max<int64_t>(1, p.k / Large::block_k / split_model.least_steps_per_split);
  return blocks < split_model.blocks_at_once / 2 ? GemmTile::small : GemmTile::large;
}

template <class T>
constexpr TileShape tile_shape = {T::block_m, T::block_n, T::block_k};

Plan sm80_plan(const GemmArgs& p) {
  return tile_for(p) == GemmTile::large ? plan_for(p, tile_shape<Large>, split_model)
                                        : plan_for(p, tile_shape<Small>, split_model);
}

template <class T, bool a_k_major, bool b_k_major, class Epilogue>
void launch_gemm(const GemmArgs& p, const Plan& plan, cudaStream_t stream) {
  const int64_t blocks = int64_t{plan.rows} * plan.columns * plan.splits;
  const size_t shared_bytes = T::ring_bytes + (p.column_sums ? T::sums_bytes : 0);
  launch(gemm_kernel<T, a_k_major, b_k_major, Epilogue>, grid_of(blocks), T::threads, shared_bytes, stream, p,
         plan);
}

template <class T>
void launch_product(const GemmArgs& p, Plan plan, void* workspace, cudaStream_t stream) {
  switch (p.product) {
    case Product::forward:
      if (p.gelu) return launch_gemm<T, true, true, BiasGelu8>(p, plan, stream);
      return launch_gemm<T, true, true, Bias8>(p, plan, stream);
    case Product::input_gradient:
      if (p.factor_pre) return launch_gemm<T, true, false, GeluGradient8>(p, plan, stream);
      return launch_gemm<T, true, false, Store8>(p, plan, stream);
    case Product::weight_gradient:
      set_workspace(p, plan, workspace);
      launch_gemm<T, false, false, Accumulate8>(p, plan, stream);
      add_partials(p, plan, stream);
  }
}

}  // namespace

size_t gemm_sm80_workspace_bytes(const GemmArgs& p) {
  return p.product == Product::weight_gradient ? workspace_bytes(p, sm80_plan(p)) : 0;
}

void gemm_sm80(const GemmArgs& p, void* workspace, cudaStream_t stream) {
  if (p.m == 0 || (p.product == Product::weight_gradient && p.k == 0)) return;
  check_args(p, workspace);
  const Plan plan = sm80_plan(p);
  if (tile_for(p) == GemmTile::large)
    launch_product<Large>(p, plan, workspace, stream);
  else
    launch_product<Small>(p, plan, workspace, stream);
}

}  // namespace hearth::kernels
