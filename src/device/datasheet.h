// What NVIDIA's datasheets promise of a GPU, for the MFU column and the benchmark's percentages.
#pragma once

#include <optional>
#include <string_view>

namespace hearth {

struct Datasheet {
  double flops;      // dense bf16 with fp32 sums, FLOP/s
  double bandwidth;  // of memory, bytes/s
};

// By the name that the driver gives the GPU.  Nothing for a name with as much as one more word: a slice, a
// laptop's or a cut-down GPU has other numbers.
std::optional<Datasheet> datasheet_of(std::string_view gpu);

}  // namespace hearth
