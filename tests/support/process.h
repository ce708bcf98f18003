// Running programs from tests: capture what they print, send them signals, never wait for ever.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

namespace hearth::testing {

struct Outcome {
  int code = -1;       // exit code, or 128 + signal
  std::string output;  // stdout and stderr, in order
};

// A child process whose output is collected.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) run(command, ends[1]);
    ::close(ends[1]);
    read_end_ = ends[0];
  }
  ~Process() {
    if (!reaped_) {
      ::kill(pid_, SIGKILL);
      finish(10);
    }
    ::close(read_end_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  const std::string& output() const { return outcome_.output; }

  // Reads output until it contains `text`; false at the end of output or after `seconds`.
  bool wait_for(const std::string& text, double seconds = 60) {
    const Clock::time_point deadline = after(seconds);
    while (outcome_.output.find(text) == std::string::npos)
      if (!read_some(deadline)) return false;
    return true;
  }

  // Reads the rest and waits for the end.  After `seconds` the process is killed: code 137.
  Outcome finish(double seconds = 120) {
    const Clock::time_point deadline = after(seconds);
    while (read_some(deadline)) {
    }
    if (Clock::now() >= deadline) ::kill(pid_, SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    reaped_ = true;
    outcome_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return outcome_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static Clock::time_point after(double seconds) {
    return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }

  [[noreturn]] static void run(const std::vector<std::string>& command, int write_end) {
    ::dup2(write_end, STDOUT_FILENO);
    ::dup2(write_end, STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& part : command)
      argv.push_back(const_cast<char*>(part.c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }

  bool read_some(Clock::time_point deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{read_end_, POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) return false;
    char buffer[4096];
    const ssize_t n = ::read(read_end_, buffer, sizeof buffer);
    if (n <= 0) return false;
    outcome_.output.append(buffer, static_cast<size_t>(n));
    return true;
  }

  pid_t pid_ = -1;
  int read_end_ = -1;
  bool reaped_ = false;
  Outcome outcome_;
};

inline Outcome run_program(const std::vector<std::string>& command) {
  return Process(command).finish();
}

// The executable under test.
inline std::string hearth_binary() {
  const char* path = std::getenv("HEARTH_BINARY");
  return path ? path : "build/hearth";
}

// hearth WORDS...
inline std::vector<std::string> hearth(std::vector<std::string> words) {
  words.insert(words.begin(), hearth_binary());
  return words;
}

}  // namespace hearth::testing
