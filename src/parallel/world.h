// World: this process's place among the ranks of the run, and its ways to the others.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/control_plane.h"
#include "comm/gloo_communicator.h"
#include "parallel/process_groups.h"

namespace hearth {

struct WorldOptions {
  int64_t tensor = 1;
  int64_t data = -1;  // -1: what the other axes leave
  int64_t pipeline = 1;
  double timeout_seconds = 60;
  std::string build;   // all ranks must run the same program,
  std::string config;  // with the same configuration
  std::function<void(const std::string&)> log;
  std::function<void()> while_waiting = [] {};  // for the other ranks; may throw
};

// The size of the data axis when `world` ranks run.  Throws Error(usage) when the axes do not make up the
// world, with the arithmetic and the nearest numbers of ranks that do.
int64_t data_ranks(const WorldOptions& options, int64_t world);

class World {
 public:
  // Meets the other ranks, if the environment says that there are any (comm/rendezvous.h), and connects the
  // groups. Throws Error(usage) when the number of ranks is not tensor * data * pipeline.
  explicit World(const WorldOptions& options);

  const ProcessGroups& groups() const { return groups_; }
  int rank() const { return groups_.grid.rank(); }
  int size() const { return groups_.grid.world(); }
  int local_rank() const { return local_rank_; }  // among the ranks of this machine
  bool leader() const { return rank() == 0; }
  bool alone() const { return groups_.alone(); }

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
  std::unique_ptr<GlooFabric> fabric_;
  ProcessGroups groups_;
  int local_rank_ = 0;
  int64_t exchanges_ = 0;
};

}  // namespace hearth
