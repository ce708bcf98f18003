#include "cli/checkpoint_source.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/config_source.h"

namespace hearth {

namespace {

// The same kinds as device.kind of a configuration.
void require_device_kind(const std::string& kind) {
  const Key* key = find_key("device.kind");
  const std::vector<std::string>& kinds = std::get<Choices>(key->limits).names;
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end())
    fail_usage("--device ", quoted(kind), ", expected ", allowed_values(*key));
}

}  // namespace

std::vector<Option> device_options() {
  return {
      {"device", "KIND", "auto", "auto, cuda, cpu or reference"},
      {"threads", "N", "0", "CPU threads; 0 = all cores this process may use"},
  };
}

OpenedModel open_model(const std::string& path, const Arguments& arguments) {
  DeviceConfig wanted;
  wanted.kind = arguments.text("device");
  wanted.threads = static_cast<int>(arguments.whole("threads", 0, 4096));
  require_device_kind(wanted.kind);
  const CheckpointReader checkpoint = open_checkpoint(path);
  OpenedModel opened;
  opened.path = checkpoint.path();
  opened.step = checkpoint.state().step;
  opened.config = settings_from(checkpoint.state().config, opened.path.string()).run;
  try {
    validate(opened.config.model);
  } catch (const Error& error) {
    fail_data(opened.path.string(), ": ", error.what());
  }
  wanted.gemm = opened.config.device.gemm;
  if (opened.config.train.precision == Precision::fp64) {
    if (wanted.kind == "auto") wanted.kind = "reference";
    if (wanted.kind != "reference")
      fail_usage("--device ", wanted.kind,
                 ": the checkpoint was trained in fp64, which only the reference device "
                 "can compute");
  }
  opened.device = make_device(wanted);
  opened.model = load_model(checkpoint, opened.config, *opened.device);
  return opened;
}

}  // namespace hearth
