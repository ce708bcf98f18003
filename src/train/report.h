// The start-up report: what will be trained on what, with which arithmetic and how much memory,
// before it starts.
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

// What the report and `hearth plan` say in the same words.
std::string model_line(const ModelConfig& model);
std::string batch_line(const RunConfig& config, const Grid& grid);
std::string precision_line(const TrainConfig& train);
std::string layout_line(const RunConfig& config, const Grid& grid);
std::string memory_line(const MemoryPlan& memory);

}  // namespace hearth
