// A run of the benchmark: devices, ceilings, cases, one after another.
#pragma once

#include <functional>
#include <string>

#include "bench/options.h"
#include "bench/result.h"

namespace hearth::bench {

// A device to measure on, and the engine of its matrix products ("" where there is no choice).
struct Engine {
  std::string name;
  std::unique_ptr<Device> device;
};

// Measures the cases on the first engine, and matrix products on all.  `line` gets the table, line by line.
Report run(const Options& options, std::vector<Engine>& engines,
           const std::function<void(const std::string&)>& line);

// The devices that the options ask for.  An engine that cannot be had is left out and `line` is told why,
// unless it was asked for by name: then Error(device).
std::vector<Engine> make_engines(const Options& options, const std::function<void(const std::string&)>& line);

// The whole program; returns the exit code: 0, or 70 when a result was wrong.
int run_bench(const std::vector<std::string>& arguments);

}  // namespace hearth::bench
