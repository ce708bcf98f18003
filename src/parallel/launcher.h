// Launcher: starts the ranks of one host and takes care of them to the end (`hearth launch -n 8 train ...`).
//
// Every rank is a direct child with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and HEARTH_TOKEN
// in its environment, in a process group of its own: Ctrl-C reaches the launcher alone, which passes it on
// once. Output lines get the rank in front.  When a rank fails, the others have a moment to end by themselves
// (the control plane has told them), then get TERM, then KILL; nothing is left behind, and the last line is
// the first failure.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace hearth {

struct LaunchOptions {
  int processes = 1;       // on this host
  int first_rank = 0;      // of this host's ranks
  int world = 0;           // of all hosts; 0 = `processes`
  std::string host;        // of rank 0; empty = this one
  int port = 0;            // of rank 0; 0 = a free one, when rank 0 is here
  std::string token;       // empty = HEARTH_TOKEN, else a random one (none on several hosts)
  bool bind_cores = true;  // divide the cores among the ranks
  // Another launcher (scripts/launch_ssh.sh) holds our standard input: its first line is the token, a later
  // one the name of a signal to pass on ("TERM", "USR1"), its end means TERM.
  bool controlled = false;
  std::chrono::milliseconds settle{2'000};  // for the others to end by themselves after a failure
  std::chrono::milliseconds grace{10'000};  // the same after a planned stop, and between TERM and KILL then
  // Between TERM and KILL after a failure: without the lost rank no other one can save anything.
  std::chrono::milliseconds notice{500};
};

// Runs the program `argv` as all ranks.  Returns the exit code of the rank that failed first (128 + the
// signal if it was killed), else 0.  Throws Error(usage) when the numbers make no sense, Error(peer) when the
// port is taken or a process cannot be started.
int launch(const LaunchOptions& options, const std::vector<std::string>& argv);

// The cores of local rank `index` of `count`: a contiguous share, or one core in turn when there are too few.
std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int count);

}  // namespace hearth
