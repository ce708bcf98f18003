// hearth-conformance FILE [--sm80]: writes what every instruction did, eight words a line after its name.
// --sm80 leaves sm_90a's instructions out, as a GPU of another generation does by itself; so a dump of the
// emulator can be made to compare with.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <exception>

#include "kernels/conformance/conformance.h"

namespace {

bool is_hopper() {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  return major == 9 && minor == 0;
}

bool write(const char* path, const std::vector<hearth::conformance::Record>& records) {
  std::FILE* file = std::fopen(path, "w");
  if (!file) return false;
  for (const auto& record : records)
    for (size_t i = 0; i < record.output.size(); ++i) {
      if (i % 8 == 0) std::fprintf(file, "%s: %05zu:", record.name.c_str(), i);
      std::fprintf(file, i % 8 == 7 || i + 1 == record.output.size() ? " %08x\n" : " %08x", record.output[i]);
    }
  return std::fclose(file) == 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2 || count > 3 || (count == 3 && std::strcmp(arguments[2], "--sm80") != 0)) {
    std::fprintf(stderr, "usage: hearth-conformance FILE [--sm80]\n");
    return 2;
  }
  try {
    const auto records = hearth::conformance::run(count == 2 && is_hopper());
    if (write(arguments[1], records)) {
      std::printf("%zu records\n", records.size());
      return 0;
    }
    std::fprintf(stderr, "hearth-conformance: cannot write %s\n", arguments[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hearth-conformance: %s\n", error.what());
  }
  return 72;
}
