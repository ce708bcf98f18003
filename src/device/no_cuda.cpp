// The CUDA device of a build without CUDA: it says so.
// A build with CUDA links src/device/cuda in front of it.
#include "device/device.h"

namespace hearth {

std::string cuda_build() {
  return "no CUDA";
}

std::optional<std::string> cuda_unavailable(int) {
  return "this build has no CUDA";
}

std::unique_ptr<Device> make_cuda_device(const DeviceConfig&) {
  fail_device(
      "device.kind = \"cuda\": ", *cuda_unavailable(0),
      " (build with `make ARCHS=\"80 90a\"` where nvcc is installed); use device.kind = \"cpu\" or \"auto\"");
}

}  // namespace hearth
