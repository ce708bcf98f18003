// Cross-entropy in two halves, so that shards of the vocabulary combine in between: the maximum by MAX, then,
// rescaled to it, the sum and the target's logit by SUM.
//
//   loss = log(sum over v of exp(x[v])) - x[target]
#include <algorithm>

#include "device/reference/reference_ops.h"
#include "device/reference/view.h"

namespace hearth::reference {

// The rows of the statistics.
constexpr int MAX = 0, SUM = 1, TARGET = 2;

// The column of the target of a row, or -1 when this shard does not have it.
static int64_t target_column(int32_t target, const VocabShard& shard) {
  const int64_t column = target - shard.start;
  return target >= 0 && column >= 0 && column < shard.valid ? column : -1;
}

template <class Compute>
static void statistics(View<Compute> logits, const int32_t* targets, const VocabShard& shard,
                       View<Master<Compute>> stats) {
  for (int64_t n = 0; n < logits.dim(0); ++n) {
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t v = 0; v < shard.valid; ++v)
      largest = std::max<double>(largest, logits(n, v));
    double sum = 0;
    for (int64_t v = 0; v < shard.valid; ++v)
      sum += std::exp(logits(n, v) - largest);
    const int64_t target = target_column(targets[n], shard);
    stats(MAX, n) = largest;
    stats(SUM, n) = sum;
    stats(TARGET, n) = target >= 0 ? logits(n, target) : 0.0;
  }
}

template <class Scalar>
static void rescale(View<Scalar> stats, View<Scalar> global_max) {
  for (int64_t n = 0; n < global_max.dim(0); ++n) {
    stats(SUM, n) *= std::exp(stats(MAX, n) - global_max(n));
    stats(MAX, n) = global_max(n);
  }
}

template <class Compute>
static void finish_losses(const int32_t* targets, View<Master<Compute>> stats, View<Master<Compute>> losses) {
  for (int64_t n = 0; n < losses.dim(0); ++n)
    losses(n) = targets[n] < 0 ? 0.0 : std::log(stats(SUM, n)) + stats(MAX, n) - stats(TARGET, n);
}

// dlogits = (softmax - onehot) loss_scale
template <class Compute>
static void finish_gradient(View<Compute> logits, const int32_t* targets, const VocabShard& shard,
                            View<Master<Compute>> stats, double loss_scale, View<Compute> dlogits) {
  for (int64_t n = 0; n < logits.dim(0); ++n) {
    const int64_t target = target_column(targets[n], shard);
    for (int64_t v = 0; v < logits.dim(1); ++v) {
      const bool counts = targets[n] >= 0 && v < shard.valid;
      const double softmax = counts ? std::exp(logits(n, v) - stats(MAX, n)) / stats(SUM, n) : 0.0;
      dlogits(n, v) = (softmax - (v == target ? 1 : 0)) * loss_scale;
    }
  }
}

static void expect_logits(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                          const Tensor& stats) {
  const int64_t N = logits.dim(0), V = logits.dim(1);
  expect("logits", logits, {N, V});
  expect("targets", targets, {N});
  expect("stats", stats, {3, N});
  check(shard.valid >= 0 && shard.valid <= V, shard.valid, " valid columns of ", V);
}

void ReferenceOps::cross_entropy_statistics(const Tensor& logits, const Tensor& targets,
                                            const VocabShard& shard, const Tensor& stats) {
  expect_logits(logits, targets, shard, stats);
  with_scalar(logits.dtype, [&]<class Compute>(Compute) {
    statistics<Compute>(logits, targets.as<int32_t>(), shard, stats);
  });
}

void ReferenceOps::cross_entropy_rescale(const Tensor& stats, const Tensor& global_max) {
  expect("stats", stats, {3, stats.dim(1)});
  expect("global_max", global_max, {stats.dim(1)});
  with_master(stats.dtype, [&]<class Scalar>(Scalar) { rescale<Scalar>(stats, global_max); });
}

void ReferenceOps::cross_entropy_finish(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                                        const Tensor& stats, const Tensor& losses, const Tensor& dlogits) {
  expect_logits(logits, targets, shard, stats);
  expect("losses", losses, {logits.dim(0)});
  expect_if_present("dlogits", dlogits, logits.shape);
  check(!dlogits || step_ != nullptr, "dlogits need the step's scalars: call set_step_params first");
  with_scalar(logits.dtype, [&]<class Compute>(Compute) {
    const int32_t* ids = targets.as<int32_t>();
    finish_losses<Compute>(ids, stats, losses);
    if (dlogits) finish_gradient<Compute>(logits, ids, shard, stats, step_->loss_scale, dlogits);
  });
}

}  // namespace hearth::reference
