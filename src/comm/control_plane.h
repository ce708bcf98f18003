// Control plane: one TCP connection from every rank to rank 0, open all run long.
//
// It gathers the ranks at the start, carries small keys and values (addresses of the collectives), barriers,
// and the one thing that must always get through: which rank failed, and why.  A rank that dies closes its
// connection, a rank that hangs falls silent; both become a Failure on all ranks within `timeout`.  A thread
// of each process serves the connection; on rank 0 another one is the Coordinator.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/failure.h"
#include "comm/rendezvous.h"
#include "comm/socket.h"
#include "comm/wire.h"

namespace hearth {

class Coordinator;

struct ControlOptions {
  Rendezvous where;
  std::string build;   // of this program; all ranks must agree
  std::string config;  // fingerprint of the configuration; all ranks must agree
  std::string device;  // identity of the accelerator, when no other rank may use the same; else empty
  std::chrono::milliseconds init_timeout{300'000};
  std::chrono::milliseconds timeout{60'000};              // of silence of a rank, and of barriers
  std::function<void(const std::string&)> log = nullptr;  // "waiting for ranks 3, 7", on rank 0
  // Called often while the others have not come yet; what it throws ends the waiting.
  std::function<void()> while_waiting = [] {};
};

class ControlPlane {
 public:
  // Meets the other ranks.  Throws Error(peer) when they do not come, Error(usage) when they do not fit.
  explicit ControlPlane(ControlOptions options);
  // Without leave() the other ranks take it for a failure.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  int rank() const { return options_.where.rank; }
  int world() const { return options_.where.world; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  std::chrono::milliseconds init_timeout() const { return options_.init_timeout; }
  const Member& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  std::string describe_rank(int rank) const { return describe(rank, member(rank)); }

  // All of these throw the run's Failure as an Error.
  void put(const std::string& key, const std::string& value);
  // Waits until some rank has put the key.
  std::string get(const std::string& key);
  // The same, but nothing when nobody puts it within `patience`.
  std::optional<std::string> look_up(const std::string& key, std::chrono::milliseconds patience);
  // All ranks, the same name; a later barrier may have it again.
  void barrier(const std::string& name) { barrier(name, options_.timeout); }
  void barrier(const std::string& name, std::chrono::milliseconds patience);
  void throw_if_failed() const;

  // "step 41": what the others are told of this rank when it is lost.
  void set_status(const std::string& status);

  // This rank cannot go on: tells all others why.  The first failure of the run counts.
  void fail(ExitCode code, const std::string& reason) noexcept;
  std::optional<Failure> failure() const;
  // The failure, if it becomes known within this time.
  std::optional<Failure> wait_for_failure(std::chrono::milliseconds patience) const;
  // Calls `listener` once, from the service thread, when the run fails.  Returns a handle to stop listening;
  // after that the listener is not running.
  int on_failure(std::function<void()> listener);
  void stop_listening(int handle) noexcept;

  // The orderly end: waits for all ranks, then says goodbye.
  void leave();

 private:
  void join();
  void connect_to_coordinator(Clock::time_point deadline);
  bool say_hello(Clock::time_point deadline);
  void serve();
  void receive();
  void handle(const wire::Message& message);
  void record(const Failure& failure);
  void send(const std::string& message);
  void wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done,
                  std::chrono::milliseconds patience, const std::string& what);

  const ControlOptions options_;
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0
  std::vector<Member> members_;
  Descriptor socket_;
  Descriptor wake_;
  std::mutex send_mutex_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  wire::Inbox inbox_;  // only the service thread uses it, after the start
  bool welcomed_ = false;
  bool leaving_ = false;
  std::string status_;
  Clock::time_point next_status_{};
  std::map<std::string, std::string> values_;
  std::set<std::string> released_;
  uint64_t barriers_ = 0;
  std::optional<Failure> failure_;

  std::mutex listener_mutex_;
  std::map<int, std::function<void()>> listeners_;
  int next_listener_ = 0;

  Clock::time_point last_heard_;
  std::thread thread_;
};

}  // namespace hearth
