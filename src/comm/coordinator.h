// Coordinator: rank 0's half of the control plane, a thread that serves one connection per rank.
//
// It gathers the ranks and refuses those that do not fit, then hands out keys and values, holds barriers, and
// watches: a closed connection, a silent rank or a reported failure becomes the one Failure of the run, which
// every rank is told.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/failure.h"
#include "comm/socket.h"
#include "comm/wire.h"

namespace hearth {

// What a member says of itself first.
struct Hello {
  std::string token;
  int rank = 0;
  int world = 1;
  std::string host;
  int64_t pid = 0;
  std::string device;  // identity of its accelerator; empty when it may be shared or there is none
  std::string build;   // of the program
  std::string config;  // fingerprint of the configuration
};

std::string encode(const Hello& hello);
// Empty for what is no hello of this protocol version.
std::optional<Hello> decode_hello(const std::string& payload);

class Coordinator {
 public:
  struct Options {
    Hello self;  // rank 0's; the others must agree with it
    std::chrono::milliseconds init_timeout;
    std::chrono::milliseconds timeout;  // of silence
    std::function<void(const std::string&)> log;
  };

  Coordinator(Descriptor listener, Options options);
  // Waits a little until every rank has heard the last messages, then closes all connections.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

 private:
  struct Connection {
    Descriptor socket;
    wire::Inbox inbox;
    std::string outbox;
    int rank = -1;  // unknown until its hello
    bool finished = false;
    Clock::time_point last_heard = Clock::now();
  };
  struct Barrier {
    std::set<int> arrived;
    Clock::time_point deadline;
  };
  enum class Phase : uint8_t { gathering, running, failed };

  void run();
  void wait_for_events(Clock::time_point until);
  void serve_sockets();
  void read_from(Connection& connection);
  void flush(Connection& connection);
  void handle(Connection& connection, const wire::Message& message);
  void handle_hello(Connection& connection, const std::string& payload);
  // Why a hello cannot be part of this run; empty when it can.
  std::string misfit(const Hello& hello) const;
  void welcome_everybody();
  void handle_barrier(Connection& connection, const std::string& payload);
  void lost(Connection& connection, const std::string& how);
  void check_deadlines();
  void send_heartbeats();
  void report_progress();
  void fail(const Failure& failure);
  void send(Connection& connection, const std::string& message);
  bool drained() const;

  Connection* connection_of(int rank);
  std::string describe_rank(int rank) const;
  std::string describe_ranks(const std::set<int>& ranks) const;
  std::set<int> missing_ranks() const;

  const Options options_;
  Descriptor listener_;
  Descriptor wake_;  // eventfd: the destructor wants the thread's attention
  Phase phase_ = Phase::gathering;
  std::optional<Failure> failure_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::map<int, Member> members_;
  std::map<int, Hello> hellos_;
  std::map<int, std::string> status_;  // what each rank said last that it is doing
  std::set<int> told_;                 // ranks that have joined, left or been told of the failure
  std::map<std::string, std::string> values_;
  std::map<std::string, std::set<int>> waiting_;  // for a value, by key
  std::map<std::string, Barrier> barriers_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point next_heartbeat_ = started_;
  Clock::time_point next_report_ = started_ + std::chrono::seconds(10);
  std::optional<Clock::time_point> drain_until_;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace hearth
