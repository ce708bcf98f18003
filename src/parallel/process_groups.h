// The groups of a run: one communicator for each axis of the grid, and what all ranks decide together.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/grid.h"
#include "model/sharding.h"

namespace hearth {

struct ProcessGroups {
  Grid grid;
  std::unique_ptr<Communicator> tensor = std::make_unique<SelfCommunicator>();
  std::unique_ptr<Communicator> data = std::make_unique<SelfCommunicator>();
  std::unique_ptr<Communicator> pipeline = std::make_unique<SelfCommunicator>();

  bool alone() const { return grid.world() == 1; }
  TensorShard tensor_shard() const { return {tensor->rank(), tensor->size()}; }

  // Over all ranks of the run, in place, axis by axis: the same bits everywhere.
  void all_reduce(const Tensor& inout, Reduce op) const {
    for (Communicator* axis : {tensor.get(), data.get(), pipeline.get()})
      if (axis->size() > 1) axis->all_reduce(inout, op).wait();
  }
  void throw_if_failed() const {
    for (Communicator* axis : {tensor.get(), data.get(), pipeline.get()})
      axis->throw_if_failed();
  }
};

}  // namespace hearth
