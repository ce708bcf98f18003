// Runs a launched kernel: checks its configuration, distributes its blocks over OS threads.
#pragma once

#include "emulator/simt.h"

namespace hearth::emulator {

// What is wrong with a launch, as the CUDA runtime would say at once.
cudaError_t validate(const Kernel& kernel, size_t granted_shared_bytes);
// Runs every block.  Throws Failure.
void run(const Kernel& kernel);
// For Statistics::host_waits.
void count_host_wait();

}  // namespace hearth::emulator
