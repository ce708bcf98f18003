// Rendezvous: which rank of how many this process is, and where rank 0 can be met.
//
// Looked for in this order; the first that is there counts:
//   1. flags         --rank --world-size --local-rank --rendezvous HOST:PORT
//   2. environment   RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT HEARTH_TOKEN (of `hearth launch`)
//   3. SLURM         inside a job step (srun), not in a batch script
//   4. MPI           Open MPI, or Hydra (MPICH, Intel MPI); MASTER_ADDR and MASTER_PORT when on several nodes
//   5. alone         one rank
// A set that is there only in part is an error that lists what was seen.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace hearth {

struct Rendezvous {
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  std::string host;              // of rank 0
  int port = 0;                  // that rank 0 listens on
  std::string token;             // tells this job's processes from another's
  int listener = -1;             // rank 0: a socket inherited from the launcher that listens already
  std::string source = "alone";  // "flags", "environment", "SLURM", "Open MPI", "MPI (PMI)", "alone"
};

// The value of a flag or variable that is set.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

// The process's environment.
std::optional<std::string> environment(const std::string& name);

// `flag` answers for "--rank" and so on.  Throws Error(usage).
Rendezvous find_rendezvous(const Lookup& flag, const Lookup& variable = environment);

}  // namespace hearth
