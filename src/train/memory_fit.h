// Whether a run's memory fits, before anything is allocated, and if not, what would fit.
#pragma once

#include <cstdint>
#include <string>

#include "comm/grid.h"
#include "device/device.h"
#include "train/config.h"

namespace hearth {

// The way out for a run that finds only `free` bytes on the rank at this place of the grid: the change that
// costs least time, more recomputation before smaller microbatches before more ranks.
std::string smaller_run(const RunConfig& config, const Grid& grid, uint64_t free,
                        const Device* device = nullptr);

// Throws Error(device) when the run needs more than the device has free: what is planned, what is free, and
// what would fit.
void require_memory(const RunConfig& config, const Grid& grid, const Device& device);

}  // namespace hearth
