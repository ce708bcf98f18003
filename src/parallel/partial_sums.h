// Sums over the tensor axis: the gradients that each of its ranks has only a part of.
//
// Under sequence parallelism a rank sees 1/T of the tokens outside the tensor-parallel regions.  What it adds
// to the gradients of the norms, of the biases that are added to the residual stream and of the position
// embedding is a partial sum (ParamSpec::partial_under_sequence); everything else is whole on its rank.  All
// of these travel as one tensor, once a step, when the data axis has been summed:
// with ZeRO only the own rows.
#pragma once

#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "model/parameters.h"
#include "parallel/optimizer.h"

namespace hearth {

class PartialSums {
 public:
  // Nothing to sum.
  PartialSums() = default;
  // `parts` is the number of data ranks that share the optimizer's rows: 1 without ZeRO.
  PartialSums(Device& device, const ParameterSet& parameters, const Optimizer& optimizer, int parts);

  // Of the tensor that travels: every rank's has room for the most rows that a data rank may have.
  static int64_t bytes(const std::vector<Parameter>& parameters, Precision precision, int parts);

  // Before: partial sums in the pieces' gradients; after: the sums over the group, in the same bits on all of
  // its ranks.
  void sum(Device& device, Communicator& tensor) const;

 private:
  Buffer buffer_;
  Tensor packed_;
  std::vector<std::pair<Tensor, Tensor>> places_;  // a piece's gradient, flat, and its place in `packed_`
};

}  // namespace hearth
