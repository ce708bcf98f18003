// Runs a function as several ranks: forked processes with a control plane, the way real ranks live and die.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "comm/control_plane.h"
#include "comm/gloo_communicator.h"
#include "support/temp_dir.h"

namespace hearth {

// How a rank ended.
struct RankResult {
  bool ended = false;  // by itself; else it was killed at the deadline
  int code = -1;       // exit code, or 128 + signal
  std::string output;  // what it wrote to stderr
  double seconds = 0;  // from the start
};

// A failed expectation in a rank: the rank exits with code 99 and the message.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw std::runtime_error(text(parts...));
}

class Ranks {
 public:
  using Body = std::function<int(int rank)>;  // returns the exit code

  // Each rank runs body(rank) in a process of its own.
  Ranks(int count, const Body& body) {
    std::fflush(nullptr);
    for (int rank = 0; rank < count; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) run(rank, body);
      pids_.push_back(pid);
    }
  }

  // Waits until all ranks but those in `stuck` have ended, or the deadline; the rest is killed.
  std::vector<RankResult> wait(double deadline, const std::vector<int>& stuck = {}) {
    std::vector<RankResult> results(pids_.size());
    const auto pending = [&] {
      for (size_t rank = 0; rank < pids_.size(); ++rank)
        if (!results[rank].ended && std::find(stuck.begin(), stuck.end(), rank) == stuck.end()) return true;
      return false;
    };
    while (pending() && elapsed() < deadline) {
      for (size_t rank = 0; rank < pids_.size(); ++rank)
        if (!results[rank].ended) reap(rank, results[rank], WNOHANG);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      if (results[rank].ended) continue;
      ::kill(pids_[rank], SIGKILL);
      reap(rank, results[rank], 0);
      results[rank].ended = false;
    }
    for (size_t rank = 0; rank < pids_.size(); ++rank)
      results[rank].output = read_file(output_of(static_cast<int>(rank)));
    return results;
  }

 private:
  std::filesystem::path output_of(int rank) const { return folder_ / ("rank" + std::to_string(rank)); }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  [[noreturn]] void run(int rank, const Body& body) {
    const int output = ::open(output_of(rank).c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    ::dup2(output, STDERR_FILENO);
    int code = 99;
    try {
      code = body(rank);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = static_cast<int>(error.code());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::fflush(nullptr);
    ::_exit(code);
  }

  void reap(size_t rank, RankResult& result, int flags) {
    int status = 0;
    if (::waitpid(pids_[rank], &status, flags) != pids_[rank]) return;
    result.ended = true;
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.seconds = elapsed();
  }

  TempDir folder_;
  Clock::time_point start_ = Clock::now();
  std::vector<pid_t> pids_;
};

// Options for rank `rank` of `world`, who meet at a socket that listens already.
inline ControlOptions local_options(int rank, int world, const Descriptor& listener) {
  ControlOptions options;
  options.where.rank = rank;
  options.where.world = world;
  options.where.local_rank = rank;
  options.where.host = "127.0.0.1";
  options.where.port = port_of(listener);
  options.where.token = "test";
  if (rank == 0) options.where.listener = ::dup(listener.get());
  options.build = "build";
  options.config = "config";
  options.init_timeout = std::chrono::milliseconds(10'000);
  options.timeout = std::chrono::milliseconds(10'000);
  return options;
}

// Ranks with a control plane.  `adjust` may change a rank's options.  What body throws is the run's failure.
inline std::vector<RankResult> run_ranks(int world, const std::function<void(ControlPlane&)>& body,
                                         double deadline, const std::vector<int>& stuck = {},
                                         const std::function<void(ControlOptions&)>& adjust = nullptr) {
  const Descriptor listener = listen_on(0);
  Ranks ranks(world, [&](int rank) {
    ControlOptions options = local_options(rank, world, listener);
    if (adjust) adjust(options);
    ControlPlane control(options);
    try {
      body(control);
      control.leave();
    } catch (const Error& error) {
      control.fail(error.code(), error.what());
      throw;
    } catch (const std::exception& error) {
      control.fail(ExitCode{99}, error.what());
      throw;
    }
    return 0;
  });
  return ranks.wait(deadline, stuck);
}

// The same with a Gloo communicator over all of them.
inline std::vector<RankResult> run_group(int world,
                                         const std::function<void(ControlPlane&, Communicator&)>& body,
                                         double deadline, const std::vector<int>& stuck = {},
                                         const std::function<void(ControlOptions&)>& adjust = nullptr) {
  return run_ranks(
      world,
      [&](ControlPlane& control) {
        GlooFabric fabric(control);
        std::vector<int> everybody;
        for (int rank = 0; rank < world; ++rank)
          everybody.push_back(rank);
        const auto group = fabric.connect("data", everybody);
        body(control, *group);
        control.barrier("end of the test");
      },
      deadline, stuck, adjust);
}

}  // namespace hearth
