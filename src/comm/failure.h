// What the ranks tell one another when the run must end.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace hearth {

// The first failure of a run, the same on all ranks.
struct Failure {
  int rank;            // the culprit
  ExitCode code;       // that every rank exits with
  std::string reason;  // one sentence that names the rank, its host and its process
};

// A process of the run.
struct Member {
  std::string host;
  int64_t pid = 0;
  std::string address;  // where other ranks reach it
};

// "rank 3 (node2, pid 4711)"
inline std::string describe(int rank, const Member& member) {
  return text("rank ", rank, " (", member.host, ", pid ", member.pid, ")");
}

}  // namespace hearth
