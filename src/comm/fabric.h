// Fabric: what the communicators of a process have in common, and how they are made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace hearth {

// Outlives its communicators.
class Fabric {
 public:
  virtual ~Fabric() = default;
  // Connects the ranks of a group, in this order; collective over all ranks of the run, which make their
  // groups in the same order and, at a time, of the same size.  `name` ("data") is for messages and must
  // differ between the groups that a rank is in.
  virtual std::unique_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks) = 0;
};

}  // namespace hearth
