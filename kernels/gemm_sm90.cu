// Matrix products with wgmma, for sm_90a: C [m, n] = A B, bf16 operands, fp32 sums.
//
// Mathematics: gemm.h.  The three products are one kernel with two booleans: is A (is B) stored with k
// running along its rows ("k-major")?  The tensor cores read either from shared memory, so nothing is
// transposed.
//
// Launch.  One block per multiprocessor, which works on pieces blockIdx.x, + gridDim.x, ...
// (gemm_common.cuh): a tile of C, 128 x 256, or its sum over one part of k, in steps of 64.  12 warps:
//   warpgroup 0     warp 0 is the producer: one thread starts the TMA loads of all steps.  Warps 2 and 3 add
//                   up the columns of A for the weight gradient.  40 registers.
//   warpgroups 1, 2 the consumers: each multiplies 64 rows of A with all of B, by wgmma m64n256k16, and keeps
//                   64 x 256 sums, 128 a thread; then every warp stores its 16 rows.  232 registers.
// Producer and consumers walk the same ring of stages, from one piece to the next without a pause: while the
// consumers are in their epilogue the producer fills the ring for the next tile, and C's last panels are
// still being stored while it is multiplied.
//
// Words: a piece is a tile of C with its part of k; a step is 64 of that k; a stage is a slot of the ring,
// which holds A and B of one step; a panel is 64 columns of a tile.
//
// Shared memory, 1024-byte aligned:
//
//   0         4 stages of   A 128 x 64  16 KiB | B 256 x 64  32 KiB
//   192 KiB   staging: per consumer warp a ring of 2 panels 16 x 64: 8 x 2 x 2 KiB
//   224 KiB   full[4], empty[4]: mbarriers of 8 bytes
//
// All tiles have rows of 128 bytes and the 128-byte swizzle.  K-major: [mn][64 k].  Otherwise panels of
// 64 mn, one after another: [mn / 64][64 k][64 mn].
//
//   full[s]   phase i ends when stage s holds its i-th contents: the producer has arrived, and all bytes.
//   empty[s]  phase i ends when everybody is done with them: 8 consumer warps, and 2 summing warps if there
//             are column sums.  The producer's first wait, for parity 1, passes at once.
//
// Epilogues that read a matrix (gelu' of the pre-activation) get it through the same ring: its 128 x 256 tile
// is two more stages after the last step.
//
// Weight gradient: split-K, partial sums and their addition are those of gemm_sm80.cu.  Of the tiles of one
// row of C each adds the columns of A in the steps that are its turn.
//
// Bytes moved: A and B once per row and column of tiles, from L2 but for the first time (tiles under way
// together form groups of 16 rows); C, pre and bias once.  Per step a multiprocessor loads 48 KiB and the
// tensor cores need 1024 clocks.  Expected share of the measured bf16 peak: 84% for k >= 1024, 79% at
// k = 768, where the epilogue (about 0.4 us, tensor cores idle) weighs 6% of a tile's 7 us (README.md).
#include <algorithm>
#include <type_traits>

#include "kernels/gemm_common.cuh"
#include "kernels/tensor_map.h"
#include "kernels/tiles.cuh"

namespace hearth::kernels {
namespace {

constexpr int block_m = 128, block_n = 256, block_k = 64;
constexpr int panel_columns = 64;  // a row of 128 bytes
constexpr int stages = 4;
constexpr int warpgroup = 128;  // threads
constexpr int consumers = 2;    // warpgroups
constexpr int threads = (1 + consumers) * warpgroup;
constexpr int consumer_warps = consumers * warpgroup / warp_size;
constexpr int summing_warps = block_m / panel_columns;
constexpr int first_summing_warp = 2, first_consumer_warp = warpgroup / warp_size;
constexpr int warp_rows = 16;                    // of C, of a consumer warp
constexpr int sums = block_n / 2;                // accumulators of a thread
constexpr int panels = block_n / panel_columns;  // of a warp's rows of C
constexpr int panel_sums = sums / panels;        // accumulators of a thread in one panel
constexpr int operand_panel = block_k * panel_columns * static_cast<int>(sizeof(bf16));  // bytes, mn-major
static_assert(block_k == panel_columns, "64 rows of a k-major tile are as long as a panel");

constexpr int a_bytes = block_m * block_k * static_cast<int>(sizeof(bf16));
constexpr int b_bytes = block_n * block_k * static_cast<int>(sizeof(bf16));
constexpr int stage_bytes = a_bytes + b_bytes;
// The panels of an epilogue's input: 128 rows, two in a stage.
using InputPanel = SharedTile<block_m, panel_columns>;
constexpr int inputs_per_stage = 2;
constexpr int input_bytes = inputs_per_stage * InputPanel::bytes;
static_assert(input_bytes <= stage_bytes && panels % inputs_per_stage == 0);

using StagingPanel = SharedTile<warp_rows, panel_columns>;
constexpr int staging_panels = 2;
constexpr int staging_offset = stages * stage_bytes;
constexpr int barriers_offset = staging_offset + consumer_warps * staging_panels * StagingPanel::bytes;
constexpr int shared_bytes = barriers_offset + 2 * stages * 8;
static_assert(shared_bytes <= 227 * 1024, "what a block may have on sm_90");

constexpr int producer_registers = 40, consumer_registers = 232;
static_assert((producer_registers + consumers * consumer_registers) * warpgroup <= 65536);

struct TensorMaps {
  TensorMap a, b;
  TensorMap c;    // bf16 products only
  TensorMap pre;  // stored, or the epilogue's input
};

// A place in the ring of stages.  Everybody who walks it takes the same steps.
struct Stage {
  uint32_t index = 0, parity = 0;  // parity of the phase of full[index] that ends with its contents

  __device__ __forceinline__ void advance() {
    if (++index == stages) index = 0, parity ^= 1;
  }
  __device__ __forceinline__ SharedAddress a() const { return shared_memory() + index * stage_bytes; }
  __device__ __forceinline__ SharedAddress b() const { return a() + a_bytes; }
  __device__ __forceinline__ InputPanel input(int panel) const {
    return {a() + static_cast<SharedAddress>(panel * InputPanel::bytes)};
  }
  __device__ __forceinline__ SharedAddress full() const {
    return shared_memory() + barriers_offset + index * 8;
  }
  __device__ __forceinline__ SharedAddress empty() const { return full() + stages * 8; }

  // Producer: the stage is free, and will be full when `bytes` have come.
  __device__ __forceinline__ void begin_filling(uint32_t bytes) const {
    ptx::mbarrier_wait(empty(), parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full(), bytes);
  }
  __device__ __forceinline__ void wait_full() const { ptx::mbarrier_wait(full(), parity); }
  // By a whole warp whose reads of the stage are over.
  __device__ __forceinline__ void release() const {
    if (lane_index() == 0) ptx::mbarrier_arrive(empty());
  }
  // The same when lanes read it by shared_load or ldmatrix: their reads come before TMA's next writes.
  __device__ __forceinline__ void release_after_loads() const {
    ptx::fence_proxy_async();
    __syncwarp();  // all lanes are done
    release();
  }
};

// ---- epilogues, of a warp's 16 x 256 sums
//
// What one needs from global memory it reads before the main loop (`Input`), or takes from the ring
// (`reads_pre`).  Panel `panel` of 64 columns is 16 x 64 sums, 32 in a thread.  With g = lane / 4 and
// t = lane % 4, x[8 j + i] belongs to row g + 8 (i / 2 % 2), column 16 j + 8 (i / 4) + 2 t + i % 2.

struct WarpPlace {
  int split;
  int row, column;  // of the warp's first sum
};

// The warp's ring of panels on their way to global memory.  Lane 0 starts the stores, so it waits for them.
struct Staging {
  uint32_t next = 0;

  __device__ __forceinline__ void store(const TensorMap& map, const float* x, int column, int row) {
    const uint32_t warp = static_cast<uint32_t>(warp_index() - first_consumer_warp);
    const StagingPanel panel{shared_memory() + staging_offset +
                             (warp * staging_panels + next) * StagingPanel::bytes};
    if (lane_index() == 0) ptx::bulk_wait_read<staging_panels - 1>();
    __syncwarp();  // the store before the last, of this panel, has read it
#pragma unroll
    for (int j = 0; j < panel_columns / 16; ++j, x += 8) {
      const uint32_t pairs[4] = {ptx::cvt_bf16x2(x[0], x[1]), ptx::cvt_bf16x2(x[2], x[3]),
                                 ptx::cvt_bf16x2(x[4], x[5]), ptx::cvt_bf16x2(x[6], x[7])};
      ptx::stmatrix_x4(panel.at(lane_index() % 16, 2 * j + lane_index() / 16), pairs);
    }
    ptx::fence_proxy_async();  // of the panel's writes
    __syncwarp();              // the panel is written, and TMA sees it
    if (lane_index() == 0) {
      ptx::tma_store_2d(map, panel.base, column, row);
      ptx::bulk_commit();
    }
    next ^= 1;
  }
  __device__ __forceinline__ void finish() const {
    if (lane_index() == 0) ptx::bulk_wait_read<0>();
  }
};

struct WarpStore {
  static constexpr bool reads_pre = false;
  using Input = NoInput;
  static __device__ __forceinline__ Input read(const GemmArgs&, const WarpPlace&) { return {}; }
  static __device__ __forceinline__ void write(float (&acc)[sums], const TensorMaps& maps, const GemmArgs&,
                                               const Plan&, const WarpPlace& at, const Input&,
                                               Staging& staging, Stage&) {
#pragma unroll
    for (int panel = 0; panel < panels; ++panel)
      staging.store(maps.c, acc + panel * panel_sums, at.column + panel * panel_columns, at.row);
  }
};

// + bias, rounded; with gelu the pre-activation is rounded, stored, and c is gelu of it.
template <bool gelu>
struct WarpBias {
  static constexpr bool reads_pre = false;
  struct Input {
    uint32_t pairs[block_n / 8];  // of columns 8 j + 2 t, 8 j + 2 t + 1
  };
  static __device__ __forceinline__ Input read(const GemmArgs& p, const WarpPlace& at) {
    Input bias;
    const int column = at.column + accumulator_column(0);
#pragma unroll
    for (int j = 0; j < block_n / 8; ++j)
      bias.pairs[j] =
          p.bias && column + 8 * j < p.n ? *reinterpret_cast<const uint32_t*>(p.bias + column + 8 * j) : 0;
    return bias;
  }
  static __device__ __forceinline__ void add(float* x, uint32_t bias) {
    x[0] += low_half(bias), x[1] += high_half(bias);
    x[2] += low_half(bias), x[3] += high_half(bias);
  }
  // x[0], x[1] become gelu of their rounded values.
  static __device__ __forceinline__ void round_pair(float* x) {
    const uint32_t pre = ptx::cvt_bf16x2(x[0], x[1]);
    x[0] = low_half(pre), x[1] = high_half(pre);
  }
  static __device__ __forceinline__ void write(float (&acc)[sums], const TensorMaps& maps, const GemmArgs& p,
                                               const Plan&, const WarpPlace& at, const Input& bias,
                                               Staging& staging, Stage&) {
#pragma unroll
    for (int panel = 0; panel < panels; ++panel) {
      float* x = acc + panel * panel_sums;
      const int column = at.column + panel * panel_columns;
#pragma unroll
      for (int j = 0; j < panel_columns / 8; ++j)
        add(x + 4 * j, bias.pairs[panel * (panel_columns / 8) + j]);
      if constexpr (gelu) {
#pragma unroll
        for (int i = 0; i < panel_sums; i += 2)
          round_pair(x + i);
        if (p.pre) staging.store(maps.pre, x, column, at.row);
#pragma unroll
        for (int i = 0; i < panel_sums; ++i)
          x[i] = hearth::gelu(x[i]);
      }
      staging.store(maps.c, x, column, at.row);
    }
  }
};

// * gelu'(pre)
struct WarpGeluGradient {
  static constexpr bool reads_pre = true;
  using Input = NoInput;
  static __device__ __forceinline__ Input read(const GemmArgs&, const WarpPlace&) { return {}; }
  static __device__ __forceinline__ void multiply(float* x, uint32_t pre) {
    x[0] *= gelu_derivative(low_half(pre));
    x[1] *= gelu_derivative(high_half(pre));
  }
  static __device__ __forceinline__ void write(float (&acc)[sums], const TensorMaps& maps, const GemmArgs&,
                                               const Plan&, const WarpPlace& at, const Input&,
                                               Staging& staging, Stage& stage) {
    const int first_row = (warp_index() - first_consumer_warp) * warp_rows;  // of the tile
#pragma unroll
    for (int panel = 0; panel < panels; ++panel) {
      float* x = acc + panel * panel_sums;
      const InputPanel input = stage.input(panel % inputs_per_stage);
      if (panel % inputs_per_stage == 0) stage.wait_full();
#pragma unroll
      for (int j = 0; j < panel_columns / 16; ++j) {
        uint32_t pre[4];
        ptx::ldmatrix_x4(pre, input.at(first_row + lane_index() % 16, 2 * j + lane_index() / 16));
#pragma unroll
        for (int i = 0; i < 4; ++i)
          multiply(x + 8 * j + 2 * i, pre[i]);
      }
      if (panel % inputs_per_stage == inputs_per_stage - 1) {
        stage.release_after_loads();
        stage.advance();
      }
      staging.store(maps.c, x, at.column + panel * panel_columns, at.row);
    }
  }
};

// The whole sum is added to the gradient; a part of it goes to the workspace.  A warp touches 8 rows at a
// time, whole sectors of 32 bytes of each.
struct WarpAccumulate {
  static constexpr bool reads_pre = false;
  using Input = NoInput;
  static __device__ __forceinline__ Input read(const GemmArgs&, const WarpPlace&) { return {}; }

  // 64 columns of one row: `half` 0 or 1 is row g or g + 8.
  template <bool whole>
  static __device__ __forceinline__ void write_row(const float* x, int half, float* row, int64_t columns) {
    constexpr int pairs = panel_columns / 8;
    float2 before[pairs] = {};
#pragma unroll
    for (int j = 0; j < pairs; ++j)
      if (whole && 8 * j < columns) before[j] = *reinterpret_cast<const float2*>(row + 8 * j);
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const float* sum = x + 4 * j + 2 * half;
      if (8 * j < columns)
        *reinterpret_cast<float2*>(row + 8 * j) = float2{before[j].x + sum[0], before[j].y + sum[1]};
    }
  }
  static __device__ __forceinline__ void write(float (&acc)[sums], const TensorMaps&, const GemmArgs& p,
                                               const Plan& plan, const WarpPlace& at, const Input&, Staging&,
                                               Stage&) {
#pragma unroll
    for (int panel = 0; panel < panels; ++panel)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = at.row + accumulator_row(2 * half);
        const int64_t column = at.column + panel * panel_columns + accumulator_column(0);
        if (row >= p.m) continue;
        const float* x = acc + panel * panel_sums;
        if (plan.splits == 1)
          write_row<true>(x, half, p.accumulator + row * p.c_stride + column, p.n - column);
        else
          write_row<false>(x, half, plan.partials + (at.split * p.m + row) * p.n + column, p.n - column);
      }
  }
};

// ---- the roles

__device__ __forceinline__ int first_row(const Work& work) {
  return static_cast<int>(work.tile_row) * block_m;
}
__device__ __forceinline__ int first_column(const Work& work) {
  return static_cast<int>(work.tile_column) * block_n;
}
// The pieces of this block.
template <class Function>
__device__ __forceinline__ void for_each_piece(const Plan& plan, Function function) {
  const uint32_t pieces = plan.rows * plan.columns * static_cast<uint32_t>(plan.splits);
  for (uint32_t piece = blockIdx.x; piece < pieces; piece += gridDim.x)
    function(work_of<16>(piece, plan));
}

// One operand's tile of `extent` (m or n) by 64 k.
template <bool k_major, int extent>
__device__ __forceinline__ void load_operand(SharedAddress to, const TensorMap& map, SharedAddress barrier,
                                             int mn, int k) {
  if constexpr (k_major) {
    ptx::tma_load_2d(to, map, barrier, k, mn);
  } else {
#pragma unroll
    for (int panel = 0; panel < extent / panel_columns; ++panel)
      ptx::tma_load_2d(to + panel * operand_panel, map, barrier, mn + panel * panel_columns, k);
  }
}

template <bool a_k_major, bool b_k_major, bool reads_pre>
__device__ __forceinline__ void produce(const TensorMaps& maps, const Plan& plan) {
  Stage stage;
  for_each_piece(plan, [&](const Work& work) {
    for (int step = work.begin; step < work.end; ++step, stage.advance()) {
      stage.begin_filling(stage_bytes);  // full boxes count, also where they reach beyond the matrix
      load_operand<a_k_major, block_m>(stage.a(), maps.a, stage.full(), first_row(work), step * block_k);
      load_operand<b_k_major, block_n>(stage.b(), maps.b, stage.full(), first_column(work), step * block_k);
    }
    if constexpr (reads_pre) {
      for (int panel = 0; panel < panels; panel += inputs_per_stage, stage.advance()) {
        stage.begin_filling(input_bytes);
#pragma unroll
        for (int i = 0; i < inputs_per_stage; ++i)
          ptx::tma_load_2d(stage.input(i).base, maps.pre, stage.full(),
                           first_column(work) + (panel + i) * panel_columns, first_row(work));
      }
    }
  });
}

// 16 k of an operand's tile, from k = 16 `part`.
template <bool k_major>
__device__ __forceinline__ uint64_t descriptor(SharedAddress tile, int part) {
  return k_major ? ptx::matrix_descriptor(tile + static_cast<SharedAddress>(part) * 32, 16)
                 : ptx::matrix_descriptor(tile + static_cast<SharedAddress>(part) * 2048, operand_panel);
}

template <bool a_k_major, bool b_k_major, class Epilogue>
__device__ __forceinline__ void consume(const TensorMaps& maps, const GemmArgs& p, const Plan& plan) {
  const int warp = warp_index() - first_consumer_warp;
  // This warpgroup's 64 rows of A start 8192 bytes after the other's, as rows or as a panel.
  const SharedAddress a_offset = static_cast<SharedAddress>(warp / (warpgroup / warp_size)) * operand_panel;
  Stage stage;
  Staging staging;
  for_each_piece(plan, [&](const Work& work) {
    const WarpPlace at = {work.split, first_row(work) + warp * warp_rows, first_column(work)};
    const typename Epilogue::Input input = Epilogue::read(p, at);
    float acc[sums];
    for (int step = work.begin; step < work.end; ++step, stage.advance()) {
      stage.wait_full();  // A and B of this step have come; wgmma may read them without a fence
      ptx::pin_registers(acc);
      ptx::wgmma_fence();
#pragma unroll
      for (int part = 0; part < block_k / 16; ++part)
        ptx::wgmma_m64n256k16<!a_k_major, !b_k_major>(
            acc, descriptor<a_k_major>(stage.a() + a_offset, part), descriptor<b_k_major>(stage.b(), part),
            step > work.begin || part > 0);  // the first product overwrites the last tile's sums
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();  // the other warpgroup's products keep the tensor cores busy
      ptx::pin_registers(acc);
      stage.release();
    }
    Epilogue::write(acc, maps, p, plan, at, input, staging, stage);
  });
  staging.finish();
}

// Warp `panel` of two: sums over k of 64 columns of A.  A lane takes 8 columns (lane % 8) of every 4th row
// (lane / 8).
__device__ __forceinline__ void add_columns(float (&sum)[chunk_elements], SharedAddress panel) {
  const SharedTile<block_k, panel_columns> tile{panel};
#pragma unroll 4
  for (int row = lane_index() / 8; row < block_k; row += 4) {
    const auto x = shared_load<Vector<uint32_t>>(tile.at(row, lane_index() % 8));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[2 * i] += low_half(x[i]);
      sum[2 * i + 1] += high_half(x[i]);
    }
  }
}
__device__ __forceinline__ void sum_columns(int panel, const GemmArgs& p, const Plan& plan) {
  Stage stage;
  for_each_piece(plan, [&](const Work& work) {
    float sum[chunk_elements] = {};
    uint32_t turn = work.tile_column;  // steps until this tile adds
    for (int step = work.begin; step < work.end; ++step, stage.advance()) {
      stage.wait_full();
      if (turn == 0) add_columns(sum, stage.a() + static_cast<SharedAddress>(panel) * operand_panel);
      turn = turn == 0 ? plan.columns - 1 : turn - 1;
      stage.release_after_loads();
    }
#pragma unroll
    for (float& x : sum) {
      x += __shfl_xor_sync(full_warp, x, 8);
      x += __shfl_xor_sync(full_warp, x, 16);
    }
    const int64_t column = first_row(work) + panel * panel_columns + lane_index() % 8 * chunk_elements;
    if (lane_index() >= 8 || column >= p.m) return;
    float* to = plan.partial_sums + (int64_t{work.split} * plan.columns + work.tile_column) * p.m + column;
    store16(to, Vector<float>{{sum[0], sum[1], sum[2], sum[3]}});
    store16(to + 4, Vector<float>{{sum[4], sum[5], sum[6], sum[7]}});
  });
}

template <bool a_k_major, bool b_k_major, class Epilogue>
__global__ void __launch_bounds__(threads, 1)
    gemm_sm90_kernel(const __grid_constant__ TensorMaps maps, const GemmArgs p, const Plan plan) {
  constexpr bool can_sum = std::is_same_v<Epilogue, WarpAccumulate>;
  const bool sums_columns = can_sum && p.column_sums;
  if (threadIdx.x == 0) {
    for (Stage stage; stage.parity == 0; stage.advance()) {
      ptx::mbarrier_init(stage.full(), 1);
      ptx::mbarrier_init(stage.empty(), consumer_warps + (sums_columns ? summing_warps : 0));
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the barriers exist, for TMA too

  const int warp = warp_index();
  if (warp < first_consumer_warp) {
    ptx::setmaxnreg_decrease<producer_registers>();
    if (threadIdx.x == 0) produce<a_k_major, b_k_major, Epilogue::reads_pre>(maps, plan);
    if constexpr (can_sum) {
      if (sums_columns && warp >= first_summing_warp) sum_columns(warp - first_summing_warp, p, plan);
    }
  } else {
    ptx::setmaxnreg_increase<consumer_registers>();
    consume<a_k_major, b_k_major, Epilogue>(maps, p, plan);
  }
}

// ---- launcher

// One block on each of 132 multiprocessors.
constexpr SplitModel split_model = {132, 8, 1 / 8.0};

Plan sm90_plan(const GemmArgs& p) {
  return plan_for(p, {block_m, block_n, block_k}, split_model);
}

// A box of an operand: the whole tile, or a panel where k does not run along the rows.
TensorMap operand_map(const bf16* matrix, bool k_major, int64_t mn, int64_t k, int64_t stride, int extent) {
  return k_major ? make_tensor_map(matrix, mn, k, stride, extent, block_k)
                 : make_tensor_map(matrix, k, mn, stride, block_k, panel_columns);
}

int multiprocessors() {
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device), "name the current GPU");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
             "count its multiprocessors");
  return count;
}

template <bool a_k_major, bool b_k_major, class Epilogue>
void launch_gemm(const GemmArgs& p, const Plan& plan, cudaStream_t stream) {
  TensorMaps maps = {};
  maps.a = operand_map(p.a, a_k_major, p.m, p.k, p.a_stride, block_m);
  maps.b = operand_map(p.b, b_k_major, p.n, p.k, p.b_stride, block_n);
  if (p.c) maps.c = make_tensor_map(p.c, p.m, p.n, p.c_stride, warp_rows, panel_columns);
  if (p.pre) maps.pre = make_tensor_map(p.pre, p.m, p.n, p.pre_stride, warp_rows, panel_columns);
  if (p.factor_pre) maps.pre = make_tensor_map(p.factor_pre, p.m, p.n, p.pre_stride, block_m, panel_columns);
  const int64_t pieces = int64_t{plan.rows} * plan.columns * plan.splits;
  launch(gemm_sm90_kernel<a_k_major, b_k_major, Epilogue>,
         std::min(grid_of(pieces), static_cast<unsigned>(multiprocessors())), threads, shared_bytes, stream,
         maps, p, plan);
}

}  // namespace

bool gemm_sm90_supports(const GemmArgs& p) {
  constexpr int64_t most = int64_t{1} << 30;  // coordinates are ints, and reach beyond the matrix
  return p.m > 0 && p.k > 0 && p.m < most && p.n < most && p.k < most;
}

// From half the multiprocessors on.
bool gemm_sm90_pays(const GemmArgs& p) {
  int64_t pieces = ceil_div(p.m, block_m) * ceil_div(p.n, block_n);
  if (p.product == Product::weight_gradient)
    pieces *= std::max<int64_t>(1, p.k / block_k / split_model.least_steps_per_split);
  return pieces >= split_model.blocks_at_once / 2;
}

size_t gemm_sm90_workspace_bytes(const GemmArgs& p) {
  return p.product == Product::weight_gradient ? workspace_bytes(p, sm90_plan(p)) : 0;
}

void gemm_sm90(const GemmArgs& p, void* workspace, cudaStream_t stream) {
  if (p.m == 0 || (p.product == Product::weight_gradient && p.k == 0)) return;
  check_args(p, workspace);
  check(gemm_sm90_supports(p), "gemm: TMA cannot describe ", p.m, " x ", p.n, " x ", p.k);
  Plan plan = sm90_plan(p);
  switch (p.product) {
    case Product::forward:
      if (p.gelu) return launch_gemm<true, true, WarpBias<true>>(p, plan, stream);
      return launch_gemm<true, true, WarpBias<false>>(p, plan, stream);
    case Product::input_gradient:
      if (p.factor_pre) return launch_gemm<true, false, WarpGeluGradient>(p, plan, stream);
      return launch_gemm<true, false, WarpStore>(p, plan, stream);
    case Product::weight_gradient:
      set_workspace(p, plan, workspace);
      launch_gemm<false, false, WarpAccumulate>(p, plan, stream);
      add_partials(p, plan, stream);
  }
}

}  // namespace hearth::kernels
