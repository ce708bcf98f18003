// Collectives between processes on CPUs, over Gloo's TCP transport.  Tensors lie in host memory.
//
// Gloo carries bytes between pairs of ranks; the algorithms are ours (its reduce-scatter takes seconds, and
// its sums depend on the place in a ring).  In a reduction every rank sends part p of its tensor to rank p,
// which adds up the parts that it gets in rank order; an all-reduce gathers the sums afterwards.  That moves
// as few bytes as a ring, needs one hop instead of size - 1, and a rank that does not answer is known by
// name.
//
// Messages carry a tag made of the operation, its type, size and number: ranks whose calls differ never
// exchange data and get an error after the timeout.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/control_plane.h"
#include "comm/fabric.h"

namespace hearth {

// What the communicators of a process have in common: its network device, and the way to the control plane.
// Outlives them.  A communicator that is destroyed may cut off the last message to a slower rank: let a
// barrier of the control plane (leave() is one) come before.
class GlooFabric final : public Fabric {
 public:
  // Uses the network interface by which this host reaches rank 0.  Operations fail after the control plane's
  // timeout plus a margin, in which the control plane finds a silent rank and names it.  From here on the
  // process ignores SIGPIPE.
  explicit GlooFabric(ControlPlane& control);
  ~GlooFabric() override;

  // Collective over the ranks of the group only; sizes may differ.
  std::unique_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks) override;

 private:
  struct Transport;
  ControlPlane& control_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace hearth
