// The versions of cuBLASLt that are tried, the newest first.  A file of its own, because the emulated build
// replaces it.
#include "device/cuda/api/cublaslt.h"

namespace hearth::cublaslt {

Api load() {
  static constexpr const char* names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  return load_from(names);
}

}  // namespace hearth::cublaslt
