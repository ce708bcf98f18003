// What every Communicator must do, as one function that all ranks of a group call.
#pragma once

#include "comm/communicator.h"

namespace hearth {

// Runs every collective, over awkward sizes, against plain loops.  Throws on a difference; with `exact` the
// sums must have the bits of a sum in rank order, and two more promises hold that NCCL does not give: a
// maximum keeps a NaN, and transfers that cross each other may be calls of their own.  All types, or (large
// groups are slow) f32 and bf16.
enum class Types : uint8_t { all, few };
void check_conformance(Communicator& group, bool exact, Types types = Types::all);

}  // namespace hearth
