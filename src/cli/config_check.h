// Checks of configuration values against each other; single values are checked by the schema.
#pragma once

#include "train/config.h"

namespace hearth {

// Throws Error(usage) with one sentence for the first combination that cannot work.  Reads nothing but the
// configuration, except that a path in checkpoint.resume must exist.
void validate(const RunConfig& config);

}  // namespace hearth
