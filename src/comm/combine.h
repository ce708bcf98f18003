// The arithmetic of reductions on the host, apart from how the contributions arrive.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace hearth {

// out[i] = parts[0][i] op parts[1][i] op ..., from left to right, for `count` elements of `type`.  bf16 is
// summed in fp32 and rounded once.  `out` may be one of the parts.  A maximum with a NaN is a NaN.
void combine(DType type, Reduce op, std::span<const void* const> parts, void* out, int64_t count);

}  // namespace hearth
