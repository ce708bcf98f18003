// `hearth train`: from a RunConfig to a trained checkpoint.
#pragma once

#include <string>

#include "base/error.h"
#include "train/config.h"

namespace hearth {

// Runs training to its end or to a stop and returns the process's exit code.  `config_toml` is written to the
// run directory; `values` are stored in checkpoints; `resume_command` is printed when the run ends. Throws
// Error before anything is created when the configuration, the data or the device cannot be used.
ExitCode train(const RunConfig& config, const ConfigValues& values, const std::string& config_toml,
               const std::string& resume_command);

}  // namespace hearth
