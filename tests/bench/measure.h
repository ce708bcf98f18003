// Timing: many samples of many calls, over more memory than caches hold.
#pragma once

#include <vector>

#include "bench/case.h"

namespace hearth::bench {

// Of one call, in seconds.  The percentiles are of the samples; a sample is the mean of several calls.
struct Timing {
  double median = 0, p10 = 0, p90 = 0;
  int64_t samples = 0, calls_per_sample = 0;
  double spread() const { return p90 - p10; }
};

// The value below which the share `q` of the values lies, linear between neighbours; `values` not empty.
double quantile(std::vector<double> values, double q);
Timing summarise(const std::vector<double>& seconds_per_call, int64_t calls_per_sample);

struct Effort {
  int64_t samples = 30;
  double seconds_per_sample = 2e-3;  // calls are repeated until a sample takes about so long
  double warm_up_seconds = 0.05;
  int64_t most_sets = 64;  // of operands
};

// Calls go round a number of operand sets that together are three times the device's cache, and all samples
// are queued before the first is read, so that launches are hidden behind the work.
Timing measure(Device& device, const Case& c, const Effort& effort);

}  // namespace hearth::bench
