// Stop requests: SIGINT, SIGTERM, SIGUSR1, and the time and step limits.
//
// The handler only stores the signal's number; the trainer asks at every microbatch, evaluation batch and
// sampled token.  A second SIGINT or SIGTERM ends the process at once.
#pragma once

#include <optional>

#include "base/error.h"

namespace hearth {

// Installs the handlers.  Call once, before anything slow.
void install_stop_handlers();
// The signal that asked for a stop, or 0.
int stop_signal();
// 130 for SIGINT, 143 for SIGTERM, 75 for SIGUSR1.
ExitCode exit_code_for(int signal);
// Forgets a pending request (tests).
void clear_stop_signal();

}  // namespace hearth
