// Cross-entropy in halves, so that shards of the vocabulary can combine in between.
//
//   statistics:  max[r] = max over valid v of x[r, v];    sum[r] = sum over them of exp(x[r, v] - max[r])
//                target[r] = x[r, t] of the target t, where this shard has it
//   rescale:     sum *= exp(max - global max);    max = global max
//   finish:      loss[r] = log(sum) + (max - target);    dx = (exp(x - max) / sum - onehot(t)) loss_scale
//
// logits [N, V] bf16, statistics and losses [N] fp32.  A block per row, up to 512 threads (a number that
// depends on V alone); a thread takes 8 neighbouring columns at a time.
//
// Statistics in one pass (Milakov and Gimelshein 2018): each thread keeps the maximum m of what it has seen
// and the sum of exp(x - m), rescaled when m grows; then the block takes the maximum M of the m and adds
// sum exp(m - M).  Shared memory: 4 bytes per warp.  exp(y) is 2^(y log2 e), one ex2.
// Bytes: statistics 2 N V, finish 4 N V.
#include "kernels/cross_entropy.h"

#include <algorithm>

#include "kernels/rows.cuh"

namespace hearth::kernels {
namespace {

constexpr int max_threads = 512;
constexpr float minus_infinity = -__builtin_huge_valf();

// The column of the target of a row, or -1 when this shard does not have it.
__device__ __forceinline__ int64_t target_column(int32_t target, const VocabShard& shard) {
  const int64_t column = target - shard.start;
  return target >= 0 && column >= 0 && column < shard.valid ? column : -1;
}

// exp(from - to): takes a sum relative to one maximum to another.  Both are -inf where a part of the
// vocabulary is empty.
__device__ __forceinline__ float rescaling(float from, float to) {
  return from == to ? 1.0f : ptx::ex2((from - to) * log2_e);
}

struct StatisticsProblem {
  Rows<const bf16> logits;
  const int32_t* targets;
  VocabShard shard;
  CrossEntropyStatistics stats;
};

__global__ void __launch_bounds__(max_threads)
    cross_entropy_statistics_kernel(const __grid_constant__ StatisticsProblem p) {
  const int64_t row = blockIdx.x;
  const bf16* logits = p.logits.row(row);
  const int64_t stride = static_cast<int64_t>(blockDim.x) * pack;
  float m = minus_infinity, sum = 0;  // over this thread's columns: the maximum, and the sum relative to it
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * pack; first < p.shard.valid;
       first += in_flight * stride) {
    Pack in[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (first + i * stride < p.shard.valid) in[i] = load16(logits + first + i * stride);
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int64_t column = first + i * stride;
      if (column >= p.shard.valid) continue;
      float x[pack];
      widen(in[i], x);
      float largest = m;
#pragma unroll
      for (int j = 0; j < pack; ++j) {
        if (column + j >= p.shard.valid) x[j] = minus_infinity;  // padding
        largest = x[j] > largest ? x[j] : largest;
      }
      sum *= rescaling(m, largest);
      m = largest;
#pragma unroll
      for (int j = 0; j < pack; ++j)
        sum += x[j] == minus_infinity ? 0.0f : ptx::ex2((x[j] - m) * log2_e);
    }
  }
  const float row_max = block_max(m, shared_memory());
  const float row_sum = block_sum(sum * rescaling(m, row_max), shared_memory());
  if (threadIdx.x != 0) return;
  const int64_t target = target_column(p.targets[row], p.shard);
  p.stats.max[row] = row_max;
  p.stats.sum[row] = row_sum;
  p.stats.target[row] = target >= 0 ? to_float(logits[target]) : 0.0f;
}

constexpr int rescale_threads = 256;
__global__ void __launch_bounds__(rescale_threads)
    cross_entropy_rescale_kernel(const CrossEntropyStatistics stats, const float* global_max, int64_t rows) {
  const int64_t row = global_thread_index();
  if (row >= rows) return;
  const float to = global_max[row];
  stats.sum[row] *= rescaling(stats.max[row], to);
  stats.max[row] = to;
}

struct FinishProblem {
  Rows<const bf16> logits;
  const int32_t* targets;
  VocabShard shard;
  CrossEntropyStatistics stats;
  float* losses;
  Rows<bf16> dlogits;
  const StepParams* step;
  int64_t columns;
};

// dlogits may be logits: each thread reads a vector before it writes it, and the target's logit was kept by
// the statistics.
__global__ void __launch_bounds__(max_threads)
    cross_entropy_finish_kernel(const __grid_constant__ FinishProblem p) {
  const int64_t row = blockIdx.x;
  const int32_t target_id = p.targets[row];
  const float max = p.stats.max[row], sum = p.stats.sum[row];
  if (threadIdx.x == 0) p.losses[row] = target_id < 0 ? 0.0f : logf(sum) + (max - p.stats.target[row]);
  if (!p.dlogits) return;

  const float loss_scale = static_cast<float>(p.step->loss_scale);
  const float inverse_sum = 1.0f / sum;
  const int64_t target = target_column(target_id, p.shard);
  const int64_t valid = target_id < 0 ? 0 : p.shard.valid;  // columns that have a gradient
  const int64_t stride = static_cast<int64_t>(blockDim.x) * pack;
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * pack; first < p.columns;
       first += in_flight * stride) {
    Pack in[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (first + i * stride < valid) in[i] = ptx::load16_streaming(p.logits.row(row) + first + i * stride);
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int64_t column = first + i * stride;
      if (column >= p.columns) continue;
      float d[pack] = {};
      if (column < valid) {
        widen(in[i], d);
#pragma unroll
        for (int j = 0; j < pack; ++j) {
          const float softmax = ptx::ex2((d[j] - max) * log2_e) * inverse_sum;
          const float gradient = (softmax - (column + j == target ? 1.0f : 0.0f)) * loss_scale;
          d[j] = column + j < valid ? gradient : 0.0f;
        }
      }
      store16(p.dlogits.row(row) + column, rounded(d));
    }
  }
}

void check_logits(const Rows<const bf16>& logits, const int32_t* targets, const VocabShard& shard,
                  const CrossEntropyStatistics& stats, int64_t columns) {
  check_channels(columns);
  check_rows("logits", logits, columns);
  check(targets && stats.max && stats.sum && stats.target, "targets or statistics are absent");
  check(shard.valid >= 0 && shard.valid <= columns, shard.valid, " valid columns of ", columns);
}
unsigned threads_for(int64_t columns) {
  return static_cast<unsigned>(
      std::min<int64_t>(max_threads, ceil_div(columns, pack * warp_size) * warp_size));
}

}  // namespace

void cross_entropy_statistics(Rows<const bf16> logits, const int32_t* targets, const VocabShard& shard,
                              const CrossEntropyStatistics& stats, int64_t rows, int64_t columns,
                              cudaStream_t stream) {
  check_logits(logits, targets, shard, stats, columns);
  if (rows == 0) return;
  launch(cross_entropy_statistics_kernel, grid_of(rows), threads_for(columns),
         block_reduce_bytes<float>(max_threads), stream, StatisticsProblem{logits, targets, shard, stats});
}

void cross_entropy_rescale(const CrossEntropyStatistics& stats, const float* global_max, int64_t rows,
                           cudaStream_t stream) {
  check(stats.max && stats.sum && global_max, "statistics are absent");
  if (rows == 0) return;
  launch(cross_entropy_rescale_kernel, grid_of(ceil_div(rows, rescale_threads)), rescale_threads, 0, stream,
         stats, global_max, rows);
}

void cross_entropy_finish(Rows<const bf16> logits, const int32_t* targets, const VocabShard& shard,
                          const CrossEntropyStatistics& stats, float* losses, Rows<bf16> dlogits,
                          const StepParams* step, int64_t rows, int64_t columns, cudaStream_t stream) {
  check_logits(logits, targets, shard, stats, columns);
  check_rows_if_present("dlogits", dlogits, columns);
  check(losses != nullptr, "losses are absent");
  check(!dlogits || step != nullptr, "dlogits need the step's scalars: call set_step_params first");
  if (rows == 0) return;
  launch(cross_entropy_finish_kernel, grid_of(rows), threads_for(columns), 0, stream,
         FinishProblem{logits, targets, shard, stats, losses, dlogits, step, columns});
}

}  // namespace hearth::kernels
