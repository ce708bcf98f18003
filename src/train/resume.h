// Where a run starts from: scratch, or a checkpoint that fits the configuration.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/checkpoint.h"
#include "train/config.h"

namespace hearth {

// Finds what checkpoint.resume asks for, without writing anything.  `report` gets a sentence for each damaged
// checkpoint that is passed over.  A used run directory with resume = "none" is an Error(usage).
std::optional<CheckpointReader> find_resume_source(const RunConfig& config, const fs::path& run,
                                                   const std::function<void(const std::string&)>& report);

// Compares a checkpoint with this run.  A different model is an Error(usage) naming the key and both values;
// other data is an Error(data) unless checkpoint.allow_data_change; other keys that change the course of the
// training (batch, seed, precision, ...) come back as sentences for the log.
std::vector<std::string> compare_with_checkpoint(const CheckpointReader& checkpoint, const RunConfig& config,
                                                 const ConfigValues& values,
                                                 const std::string& data_fingerprint,
                                                 const std::string& tokenizer_fingerprint);

}  // namespace hearth
