// Stop requests.  A handler may touch nothing but lock-free atomics, so that is all there is.
#include "train/stop.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

namespace hearth {
namespace {

// The one thing a signal handler can reach: there is no context to pass to it.
std::atomic<int> requested = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void say(const char* sentence) {
  // stderr may be closed; there is nobody else to tell.
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, sentence, std::strlen(sentence));
}

void handle(int signal) {
  int before = 0;
  if (requested.compare_exchange_strong(before, signal)) return;
  if (signal == SIGUSR1) return;
  // SIGUSR1 asks for a stop with the exit code "start me again"; a first SIGINT or SIGTERM overrides that.
  if (before == SIGUSR1 && requested.compare_exchange_strong(before, signal)) return;
  say("hearth: second signal: stopping at once, without saving\n");
  ::_exit(128 + signal);
}

}  // namespace

void install_stop_handlers() {
  struct sigaction action = {};
  action.sa_handler = handle;
  // SA_RESTART: the trainer polls, so no system call needs to fail to notice; libraries that do not expect
  // EINTR stay safe.
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1})
    check(::sigaction(signal, &action, nullptr) == 0, "sigaction(", signal, "): ", std::strerror(errno));
}

int stop_signal() {
  return requested.load(std::memory_order_relaxed);
}

ExitCode exit_code_for(int signal) {
  switch (signal) {
    case SIGINT:
      return ExitCode::interrupted;
    case SIGTERM:
      return ExitCode::terminated;
    default:
      check(signal == SIGUSR1, "signal ", signal, " does not stop a run");
      return ExitCode::stopped_early;
  }
}

void clear_stop_signal() {
  requested = 0;
}

}  // namespace hearth
