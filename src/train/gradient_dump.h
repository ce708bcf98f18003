// debug.dump_gradients: the gradients of a step as tensors of the whole model, whatever the layout.
#pragma once

#include <vector>

#include "base/files.h"
#include "device/device.h"
#include "model/parameters.h"
#include "parallel/process_groups.h"

namespace hearth {

// A rectangle of a gradient that one rank of the run answers for.
struct GradientPiece {
  std::string name;            // of the parameter
  std::vector<int64_t> start;  // of the rectangle in the whole tensor, one number per dimension
  Tensor local;                // contiguous, of master type
};

// Puts the pieces of all ranks together, tensor by tensor in the order of `table`, and rank 0 writes them as
// one safetensors file.  Every element is in one piece of one rank.  All ranks call it.
void dump_gradients(const fs::path& file, const std::vector<ParamSpec>& table, Precision precision,
                    const std::vector<GradientPiece>& pieces, Device& device, const ProcessGroups& groups);

}  // namespace hearth
