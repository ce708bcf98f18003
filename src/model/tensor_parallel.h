// The collectives of tensor parallelism as the model calls them (Shoeybi et al. 2019; Korthikanti et al.
// 2022).
//
// Between two linear layers, features are sharded over the group: the first is column-parallel, the second
// row-parallel.  Outside such a pair, activations are replicated; with sequence parallelism they are split by
// rows instead.  A group of one makes every call return its argument.
#pragma once

#include "comm/communicator.h"

namespace hearth {

class TensorParallel {
 public:
  explicit TensorParallel(Communicator& group) : group_(group) {}

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }

  // Entering a column-parallel linear.  Before: replicated (or split by rows); after: replicated.
  // Nothing moves without sequence parallelism.
  const Tensor& gather_sequence(const Tensor& x) { return x; }

  // Leaving a row-parallel linear, in place.  Before: partial sums; after: replicated.
  // The backward pass of entering is the same sum, of the gradients.
  const Tensor& reduce_from_tp(const Tensor& partial) {
    if (size() > 1) group_.all_reduce(partial, Reduce::sum).wait();
    return partial;
  }

  // The largest value over the group, in place.
  void reduce_max(const Tensor& x) {
    if (size() > 1) group_.all_reduce(x, Reduce::max).wait();
  }

 private:
  Communicator& group_;
};

}  // namespace hearth
