// The command line of hearth-bench.
#pragma once

#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "bench/cases.h"
#include "bench/measure.h"

namespace hearth::bench {

struct Options {
  bool help = false, roofline = false, list = false;
  std::vector<std::string> compare;  // two files, or none

  std::string device = "auto";
  std::string gemm = "both";  // native | cublaslt | both, where the device has a choice
  std::optional<std::string> precision;
  std::string filter = "";
  std::string model = "124M";
  std::string shape;  // "batch=8,context=512": what differs from the model
  std::string json;
  int threads = 1;   // of the CPU
  int64_t peak = 0;  // edge of the product that measures the ceiling; 0 = by device
  Effort effort;
};

// Throws Error(usage).
Options parse(const std::vector<std::string>& arguments);
std::string help_text();

// The model with the changes of --shape.  `host`: without --shape a CPU gets one sequence.
StepShape shape_of(const Options& options, Precision precision, bool host);

}  // namespace hearth::bench
