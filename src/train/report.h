// The start-up report: what will be trained on what, with which arithmetic and how much memory, before it
// starts.
#pragma once

#include <string>
#include <vector>

#include "comm/grid.h"
#include "data/dataset.h"
#include "device/device.h"
#include "model/parameters.h"
#include "train/config.h"

namespace hearth {

// Lines without newline.  `resume` says where the run starts from.
std::vector<std::string> start_report(const RunConfig& config, const Grid& grid, const Corpus& corpus,
                                      const Device& device, const MemoryPlan& memory,
                                      const std::string& resume);

}  // namespace hearth
