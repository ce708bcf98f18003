// What of CUDA this executable has.  The Makefile says for which GPUs: HEARTH_CUDA_TARGETS, "sm_80 sm_90a".
#include <cuda_runtime_api.h>

#include "base/text.h"
#include "device/cuda/targets.h"
#include "device/device.h"

namespace hearth {

namespace cuda {

std::string_view targets() {
  return HEARTH_CUDA_TARGETS;
}

}  // namespace cuda

std::string cuda_build() {
  int version = 0;
  cudaRuntimeGetVersion(&version);  // 1000 * major + 10 * minor
  return text("CUDA ", version / 1000, ".", version % 1000 / 10, " for ", cuda::targets());
}

}  // namespace hearth
