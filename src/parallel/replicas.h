// Whether the copies of weights that different ranks hold are still copies.
//
// All ranks of the data axis have the same weights, those of the tensor axis the same norms, biases and
// position embedding, and the two ends of the pipeline the same tied embedding.  Nothing in a step compares
// them: a bit that flips in one rank's memory, or a sum that differs between ranks, spoils a run in silence.
// So their bytes are hashed and the hashes compared, every parallel.check_every steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/parameters.h"
#include "parallel/optimizer.h"
#include "parallel/process_groups.h"

namespace hearth {

// A hash of the tensor's bytes, the same on every device.
uint64_t hash_of(Device& device, const Tensor& tensor);

// Copies that differ.
struct OddReplica {
  int rank = 0;         // holds the odd copy
  int other = 0;        // holds another one
  bool certain = true;  // false: there are as many copies of the one kind as of the other
  std::string tensor;

  bool operator==(const OddReplica&) const = default;
};

// What is told when the run stops for it after step `step`; after `agreed` all copies were equal.
std::string sentence_of(const OddReplica& odd, int64_t step, int64_t agreed);

// The first tensor (in table order) whose copies differ, if any: the same answer on all ranks.  All ranks of
// the run call it.  Also compared are the master weights, where every data rank has all of them.
std::optional<OddReplica> find_odd_replica(Device& device, const ModelConfig& model,
                                           const ParameterSet& parameters, const Optimizer& optimizer,
                                           const ProcessGroups& groups);

}  // namespace hearth
