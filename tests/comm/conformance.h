// What every Communicator must do, as one function that all ranks of a group call.
#pragma once

#include "comm/communicator.h"

namespace hearth {

// Runs every collective, over all types and awkward sizes, against plain loops.  Throws on a difference; with
// `exact` the sums must have the bits of a sum in rank order.
void check_conformance(Communicator& group, bool exact);

}  // namespace hearth
