// World: this process's place among the ranks of the run, and its ways to the others.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/control_plane.h"
#include "comm/fabric.h"
#include "device/device.h"
#include "parallel/process_groups.h"

namespace hearth {

struct WorldOptions {
  int64_t tensor = 1;
  int64_t data = -1;  // -1: what the other axes leave
  int64_t pipeline = 1;
  double timeout_seconds = 60;
  double init_timeout_seconds = 300;  // for the ranks to come together
  std::string build;                  // all ranks must run the same program,
  std::string config;                 // with the same configuration
  std::function<void(const std::string&)> log;
  std::function<void()> while_waiting = [] {};  // for the other ranks; may throw
};

// The size of the data axis when `world` ranks run.  Throws Error(usage) when the axes do not make up the
// world, with the arithmetic and the nearest numbers of ranks that do.
int64_t data_ranks(const WorldOptions& options, int64_t world);

class World {
 public:
  // Meets the other ranks, if the environment says that there are any (comm/rendezvous.h).  Throws
  // Error(usage) when the number of ranks is not tensor * data * pipeline.
  explicit World(const WorldOptions& options);
  // Connects the groups, whose tensors are `device`'s, which outlives this.  `transport` is "auto", "nccl" or
  // "gloo"; the ranks decide together.  Throws Error when the one that is asked for cannot be had.  All ranks
  // call it.
  void connect(Device& device, const std::string& transport);

  // The grid is there from the start, the communicators after connect().
  const ProcessGroups& groups() const { return groups_; }
  const Grid& grid() const { return groups_.grid; }
  // "nccl 2.28.9"; "gloo, through host memory (ranks 0 and 1 on node1 share GPU 0000:3b:00.0)".
  const std::string& transport() const { return transport_; }
  int rank() const { return groups_.grid.rank(); }
  int size() const { return groups_.grid.world(); }
  int local_rank() const { return local_rank_; }  // among the ranks of this machine
  bool leader() const { return rank() == 0; }
  bool alone() const { return grid().world() == 1; }

  // Rank 0 gets what every rank says, in rank order; the others get nothing.  All ranks call it.
  std::vector<std::string> gather(const std::string& mine);
  // Every rank gets what rank 0 says.  All ranks call it.
  std::string broadcast(const std::string& leaders);

  // What the others are told of this rank when it is lost.
  void set_status(const std::string& status);
  // This rank cannot go on: the others are told why, and end.
  void fail(ExitCode code, const std::string& reason) noexcept;
  // The orderly end, together.
  void leave();

 private:
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<Fabric> fabric_;
  ProcessGroups groups_;
  std::string transport_;
  int local_rank_ = 0;
  int64_t exchanges_ = 0;
};

}  // namespace hearth
