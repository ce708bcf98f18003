// Runs a launched kernel: checks its configuration, distributes its blocks over OS threads.
#pragma once

#include <functional>

#include "emulator/simt.h"

namespace hearth::emulator {

// What is wrong with a launch, as the CUDA runtime would say at once.
cudaError_t validate(const Kernel& kernel, size_t granted_shared_bytes);
// Runs every block.  Throws Failure.
void run(const Kernel& kernel);
// For Statistics::host_waits.
void count_host_wait();

// Gives a stream an operation that is asked again, while somebody waits for the stream, until it returns
// true. Device memory is accessible to it.
void enqueue_polled(cudaStream_t stream, std::function<bool()> operation);

}  // namespace hearth::emulator
