// The roofline of a training step, from the same list of cases that is measured: what must be moved and
// computed, what that takes at the ceilings of a GPU, and what our kernels are expected to take.
#pragma once

#include <string>

#include "bench/cases.h"
#include "bench/result.h"

namespace hearth::bench {

// Reachable on an H200: cuBLAS' bf16 product of 8192^3 on random data, and a copy (bytes read and written).
inline constexpr Ceilings h200{790e12, 4.3e12};
inline constexpr double h200_datasheet_flops = 989.5e12;

// The sum over a step, in seconds, at the ceilings and as expected.  `product_share` replaces the cases' own
// expectation for matrix products, 0 = keep it.
struct StepTime {
  double ideal = 0, expected = 0;
};
StepTime step_time(const StepShape& s, const Ceilings& ceilings, double product_share = 0);
// Model FLOPs (model/config.h) of the step over the datasheet's peak.
double mfu(const StepShape& s, double step_seconds);

// Markdown for kernels/README.md: a table for each model.
std::string roofline_text();

}  // namespace hearth::bench
