// Opening NCCL where the dynamic loader finds it.  The emulated build has its stand-in here instead.
#include <dlfcn.h>

#include "base/error.h"
#include "device/cuda/api/nccl.h"

namespace hearth::nccl {

std::optional<std::string> open(Api& api) {
  // Never closed: NCCL keeps threads.
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = ::dlerror();
    return text("libnccl.so.2 cannot be opened (", why ? why : "no reason given", ")");
  }
  return bind([library](const char* name) { return ::dlsym(library, name); }, api);
}

}  // namespace hearth::nccl
