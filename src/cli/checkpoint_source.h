// A checkpoint for generate and eval: opened, its configuration parsed, its weights on a device.
#pragma once

#include <memory>
#include <string>

#include "cli/options.h"
#include "device/device.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/generate.h"

namespace hearth {

// The options --device and --threads, for the tables of the commands that load a model.
std::vector<Option> device_options();

struct OpenedModel {
  fs::path path;     // of the checkpoint
  int64_t step = 0;  // its step
  RunConfig config;  // the one it was trained with
  std::unique_ptr<Device> device;
  LoadedModel model;  // declared behind the device that its memory belongs to
};

// Opens what `path` names and loads it on the device that the options ask for; "auto" is a usable GPU, else
// the CPU, and the reference device for fp64.  Error(data) for a checkpoint that cannot be used.
OpenedModel open_model(const std::string& path, const Arguments& arguments);

}  // namespace hearth
