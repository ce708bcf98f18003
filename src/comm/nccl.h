// Collectives between GPUs, over NCCL.  This header needs no CUDA: a build without CUDA links no_nccl.cpp.
//
// How it differs from Gloo (communicator.h): the host never waits in Request::wait(), which only orders the
// compute stream; sums are taken in an order of NCCL's choice, in bf16 with a rounding at each addition (the
// gradients are fp32); a maximum may drop a NaN (a sum carries it); transfers that cross each other must be
// in one exchange().  All operations run on the device's communication stream, one after the other, whatever
// their group.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/control_plane.h"
#include "comm/fabric.h"
#include "device/device.h"

namespace hearth {

// NCCL as this process finds it.
struct NcclStatus {
  std::string version;      // "2.28.9"; empty when it cannot be used,
  std::string unavailable;  // and why
};
NcclStatus nccl_status();

// Connects all ranks of the run; each must have a GPU of its own.  An operation that does not end within the
// control plane's timeout (and a margin in which the control plane can name a silent rank) ends the run, with
// the name of a rank that is not in it.  Throws Error(device) when NCCL cannot be used.
std::unique_ptr<Fabric> make_nccl_fabric(ControlPlane& control, Device& device);

}  // namespace hearth
