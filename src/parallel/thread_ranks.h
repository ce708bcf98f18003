// Runs a function as every rank of a grid, each a thread of this process.
#pragma once

#include <functional>
#include <memory>

#include "parallel/process_groups.h"

namespace hearth {

// Wraps the communicator of an axis, or returns it as it is: how tests count and spoil communication.
using Decorate = std::function<std::unique_ptr<Communicator>(Axis, std::unique_ptr<Communicator>)>;

// Calls body(groups) as every rank, and returns when all have.  When a rank throws, the others' waiting ends
// and the first exception is thrown here.
void run_as_threads(int tensor, int data, int pipeline, const std::function<void(const ProcessGroups&)>& body,
                    const Decorate& decorate = {});

}  // namespace hearth
