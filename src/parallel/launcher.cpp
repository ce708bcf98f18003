#include "parallel/launcher.h"

#include <poll.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <random>

#include "base/error.h"
#include "comm/rendezvous.h"
#include "parallel/child.h"

namespace hearth {
namespace {

using std::chrono::milliseconds;

constexpr int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// Signals arrive through a descriptor while this lives.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    for (int number : passed_on)
      sigaddset(&watched, number);
    ::pthread_sigmask(SIG_BLOCK, &watched, &before_);
    descriptor_ = Descriptor(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
    pipe_before_ = std::signal(SIGPIPE, SIG_IGN);  // a closed terminal must not end the ranks' keeper
  }
  ~SignalQueue() {
    while (next())  // what comes late has no meaning any more
      ;
    std::signal(SIGPIPE, pipe_before_);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int descriptor() const { return descriptor_.get(); }
  std::optional<int> next() {
    signalfd_siginfo info;
    if (::read(descriptor_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_;
  void (*pipe_before_)(int);
  Descriptor descriptor_;
};

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 32; ++i)
    token += "0123456789abcdef"[random() % 16];
  return token;
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  return cores;
}

std::optional<int> signal_named(const std::string& name) {
  if (name == "INT") return SIGINT;
  if (name == "TERM") return SIGTERM;
  if (name == "USR1") return SIGUSR1;
  return std::nullopt;
}

// A stop that was asked for, with the state saved: the other ranks do the same and need no hurry.
bool planned(int code) {
  return code == static_cast<int>(ExitCode::stopped_early) ||
         code == static_cast<int>(ExitCode::interrupted) || code == static_cast<int>(ExitCode::terminated);
}

// The ranks of this host, from the first start to the last end.
class Launch {
 public:
  Launch(const LaunchOptions& options, const std::vector<std::string>& argv)
      : options_(options), argv_(argv) {
    check_options();
  }

  int run() {
    read_token();
    start_ranks();
    while (any_running()) {
      wait_for_events();
      pass_on_signals();
      for (Child& child : children_) {
        child.copy_output();
        if (child.reap()) ended(child);
      }
      hurry();
    }
    for (Child& child : children_)
      child.copy_output();
    if (!first_failure_) return 0;
    report();
    return first_failure_->exit_code();
  }

  // Ranks are left over only when starting one of them failed.
  ~Launch() {
    for (Child& child : children_) {
      child.signal(SIGKILL);
      while (child.running() && !child.reap())
        ::usleep(1000);
    }
  }

 private:
  void check_options() {
    if (options_.world == 0) options_.world = options_.processes;
    if (argv_.empty()) fail_usage("launch: there is no program to start");
    if (options_.processes < 1)
      fail_usage("launch: -n ", options_.processes, " processes; at least one is needed");
    if (options_.first_rank < 0 || options_.first_rank + options_.processes > options_.world)
      fail_usage("launch: ranks ", options_.first_rank, " to ", options_.first_rank + options_.processes - 1,
                 " do not fit in a world of ", options_.world);
    const bool elsewhere = options_.first_rank > 0;
    if (elsewhere && (options_.host.empty() || options_.port == 0))
      fail_usage("launch: rank 0 is on another host; give --master HOST:PORT");
  }

  // The first line of the controlling script.
  void read_token() {
    if (!options_.controlled) {
      if (options_.token.empty()) options_.token = environment("HEARTH_TOKEN").value_or("");
      // A launcher on another host could not know a random one.
      if (options_.token.empty() && options_.world == options_.processes) options_.token = random_token();
      return;
    }
    char byte;
    while (::read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n')
      options_.token += byte;
  }

  void start_ranks() {
    Descriptor listener;
    if (options_.first_rank == 0 && options_.world > 1) {
      listener = listen_on(options_.port);
      options_.port = port_of(listener);
    }
    if (options_.host.empty()) options_.host = "127.0.0.1";
    const std::vector<int> cores = options_.bind_cores ? usable_cores() : std::vector<int>{};
    children_.reserve(static_cast<size_t>(options_.processes));
    for (int local = 0; local < options_.processes; ++local) {
      const int rank = options_.first_rank + local;
      ChildOptions child{argv_, {}, share_of_cores(cores, local, options_.processes), -1};
      child.environment = {{"RANK", std::to_string(rank)},
                           {"WORLD_SIZE", std::to_string(options_.world)},
                           {"LOCAL_RANK", std::to_string(local)},
                           {"MASTER_ADDR", options_.host},
                           {"MASTER_PORT", std::to_string(options_.port)},
                           {"HEARTH_TOKEN", options_.token}};
      if (rank == 0 && listener) {
        child.inherited = listener.get();
        child.environment["HEARTH_LISTENER"] = std::to_string(listener.get());
      }
      children_.emplace_back(rank, child);
    }
  }

  bool any_running() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& c) { return c.running(); });
  }

  void wait_for_events() {
    std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0},
                                {options_.controlled ? STDIN_FILENO : -1, POLLIN, 0}};
    for (const Child& child : children_) {
      watched.push_back({child.output(), POLLIN, 0});
      watched.push_back({child.errors(), POLLIN, 0});
    }
    ::poll(watched.data(), watched.size(), 100);
    if (watched[1].revents) read_commands();
  }

  void read_commands() {
    char buffer[256];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n <= 0) {
      options_.controlled = false;  // the script, or the connection to it, is gone
      return signal_all(SIGTERM);
    }
    commands_.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = commands_.find('\n')) != std::string::npos; commands_.erase(0, end + 1))
      if (const auto number = signal_named(commands_.substr(0, end))) signal_all(*number);
  }

  void pass_on_signals() {
    while (const auto number = signals_.next())
      if (*number != SIGCHLD) signal_all(*number);
  }

  void signal_all(int number) {
    for (const Child& child : children_)
      child.signal(number);
  }

  void ended(const Child& child) {
    if (child.exit_code() == 0 || first_failure_) return;
    first_failure_ = &child;
    // One that a signal killed had no time to save.  Its connection closed that moment: the others know
    // sooner than of a failure that each of them may still have to find and say.
    const bool killed = child.killed(), stop = planned(child.exit_code()) && !killed;
    terminate_at_ = Clock::now() + (stop ? options_.grace : killed ? options_.settle / 2 : options_.settle);
    notice_ = stop ? options_.grace : options_.notice;
  }

  // After the first failure: TERM, then KILL.
  void hurry() {
    if (!first_failure_ || Clock::now() < terminate_at_) return;
    signal_all(terminated_ ? SIGKILL : SIGTERM);
    terminated_ = true;
    terminate_at_ = Clock::now() + notice_;
  }

  // What is known of the first failure: the rank's own last words; of a rank that was killed, those of
  // another one that speaks of it, and of what it was doing.
  std::string reason() const {
    if (!first_failure_->killed()) return first_failure_->last_error_line();
    const std::string culprit = text("pid ", first_failure_->pid(), ")");
    for (const Child& child : children_)
      if (child.last_error_line().find(culprit) != std::string::npos) return child.last_error_line();
    return "";
  }

  void report() const {
    const std::string words = reason();
    // A planned stop needs nothing more than the fact.
    const bool quote = !planned(first_failure_->exit_code()) && !words.empty();
    std::fflush(stdout);
    std::fprintf(stderr, "launch: %s%s%s\n", first_failure_->describe_end().c_str(), quote ? ": " : "",
                 quote ? words.c_str() : "");
  }

  LaunchOptions options_;
  const std::vector<std::string>& argv_;
  SignalQueue signals_;
  std::vector<Child> children_;
  const Child* first_failure_ = nullptr;
  milliseconds notice_{};
  Clock::time_point terminate_at_{};
  bool terminated_ = false;
  std::string commands_;
};

}  // namespace

std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int count) {
  const auto n = static_cast<int>(cores.size());
  if (n == 0) return {};
  if (n < count) return {cores[static_cast<size_t>(index % n)]};
  const auto begin = cores.begin() + n * index / count;
  return {begin, cores.begin() + n * (index + 1) / count};
}

int launch(const LaunchOptions& options, const std::vector<std::string>& argv) {
  return Launch(options, argv).run();
}

}  // namespace hearth
