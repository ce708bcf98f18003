// The collectives of tensor parallelism as the model calls them (Shoeybi et al. 2019; Korthikanti et al.
// 2022).
//
// Between two linear layers, features are sharded over the group: the first is column-parallel, the second
// row-parallel.  Outside such a pair every rank holds the whole residual stream, or with sequence parallelism
// 1/T of its rows.  The rows of a microbatch are b-major (row b * time + t), and rank k holds rows
// [k N/T, (k+1) N/T), whatever samples they belong to: everything outside the pair works row by row, and so
// the parts of an all_gather or a reduce_scatter are the shards themselves, for any number of samples.
//
// Entering and leaving are each other's backward pass.  A group of one makes every call return its argument.
#pragma once

#include "base/error.h"
#include "comm/communicator.h"

namespace hearth {

// The rows of the residual stream that a rank holds of a microbatch of n.
struct RowShard {
  int64_t first = 0;
  int64_t count = 0;
};

class TensorParallel {
 public:
  TensorParallel(Communicator& group, bool sequence) : group_(group), sequence_(sequence && size() > 1) {}

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }

  RowShard shard(int64_t n) const {
    if (!sequence_) return {0, n};
    check(n % size() == 0, n, " tokens over ", size(), " ranks");
    return {n / size() * rank(), n / size()};
  }

  // Where the partial sums behind `x` go: x itself, or with sequence parallelism `whole`, of all rows.
  Tensor partial(const Tensor& x, const Tensor& whole) const { return sequence_ ? whole : x; }

  // Entering: before a column-parallel linear, and in the backward pass before a row-parallel one.
  // Before: x is replicated, or split by rows.  After: the result is replicated; it is x, or `whole`.
  Tensor enter(const Tensor& x, const Tensor& whole) {
    if (!sequence_) return x;
    group_.all_gather(x, whole).wait();
    return whole;
  }

  // Leaving: behind a row-parallel linear, and in the backward pass behind a column-parallel one.
  // Before: partial(x, whole) holds partial sums.  After: x holds the sums, replicated or split by rows.
  void leave(const Tensor& x, const Tensor& whole) {
    if (sequence_)
      group_.reduce_scatter(whole, x).wait();
    else
      sum(x);
  }

  // The sum and the largest value over the group, in place: partial before, replicated after.
  void sum(const Tensor& x) {
    if (size() > 1) group_.all_reduce(x, Reduce::sum).wait();
  }
  void max(const Tensor& x) {
    if (size() > 1) group_.all_reduce(x, Reduce::max).wait();
  }

 private:
  Communicator& group_;
  const bool sequence_;
};

}  // namespace hearth
