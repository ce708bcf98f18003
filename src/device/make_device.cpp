#include "device/device.h"

namespace hearth {

bool runs_on_gpu(const DeviceConfig& config) {
  return config.kind == "cuda" || (config.kind == "auto" && !cuda_unavailable(config.local_rank));
}

std::unique_ptr<Device> make_device(const DeviceConfig& config) {
  if (config.kind == "reference") return make_reference_device();
  if (runs_on_gpu(config)) return make_cuda_device(config);
  if (config.kind == "cpu" || config.kind == "auto") return make_cpu_device(config.threads);
  fail_usage("device.kind = \"", config.kind, "\", expected auto, cuda, cpu or reference");
}

}  // namespace hearth
