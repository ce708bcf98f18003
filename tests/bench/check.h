// Correctness before speed: a case's results on a device against the reference, on a part of the operands.
#pragma once

#include <string>

#include "bench/case.h"

namespace hearth::bench {

// Runs the case once on the device and compares every result with the reference: the first and the last part
// of each that its cuts name (the last one has the tails of tiles).  Returns "" or what is wrong.
std::string check(Device& device, const Case& c);

}  // namespace hearth::bench
