// Work of other stand-ins in the order of a stream: it runs when somebody synchronises.
#pragma once

#include <functional>

#include "cuda_runtime_api.h"

namespace hearth::emulator {

// `work` may touch device memory; what it throws comes out of the synchronisation that ran it.
void enqueue_work(cudaStream_t stream, std::function<void()> work);

}  // namespace hearth::emulator
