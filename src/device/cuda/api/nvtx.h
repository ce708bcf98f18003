// Names on the timeline of NVIDIA's profilers (NVTX 3, headers alone); nothing where they are not installed.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

namespace hearth::nvtx {

#if __has_include(<nvtx3/nvToolsExt.h>)
inline void push(const char* name) {
  nvtxRangePushA(name);
}
inline void pop() {
  nvtxRangePop();
}
#else
inline void push(const char*) {}
inline void pop() {}
#endif

}  // namespace hearth::nvtx
