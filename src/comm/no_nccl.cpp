// NCCL in a build without CUDA: it says so.  A build with CUDA links src/comm/nccl in front of it.
#include "comm/nccl.h"

namespace hearth {

NcclStatus nccl_status() {
  return {"", "this build has no CUDA"};
}

std::unique_ptr<Fabric> make_nccl_fabric(ControlPlane&, Device&) {
  fail_device("NCCL cannot be used: ", nccl_status().unavailable, "; use parallel.transport = \"gloo\"");
}

}  // namespace hearth
