// A child process of the launcher: one rank, its output, its end.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "comm/socket.h"

namespace hearth {

// What a child is started with.
struct ChildOptions {
  std::vector<std::string> argv;
  std::map<std::string, std::string> environment;  // in addition to ours
  std::vector<int> cores;                          // to run on; empty = all
  int inherited = -1;                              // a descriptor that stays open in it
};

class Child {
 public:
  // Starts it in a process group of its own; it dies with this process.  Throws Error(peer).
  Child(int rank, const ChildOptions& options);
  Child(Child&&) = default;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  int exit_code() const { return exit_code_; }  // 128 + signal when it was killed
  bool killed() const;                          // by a signal
  // "rank 3 (node1, pid 12) was killed by signal 9 (Killed)"
  std::string describe_end() const;

  // Sends a signal to its process group.
  void signal(int number) const;
  // Collects its end if it has come, and kills what it left behind in its group.
  // True when it ended just now.
  bool reap();

  // Descriptors to poll for its output; -1 when closed.
  int output() const { return streams_[0].from.get(); }
  int errors() const { return streams_[1].from.get(); }
  // Copies what is there to our output, line by line with the rank in front; at the end also a last line
  // without line feed.
  void copy_output();
  const std::string& last_error_line() const { return streams_[1].last_line; }

 private:
  struct Stream {
    Descriptor from;
    int to;
    std::string pending;    // an unfinished line
    std::string last_line;  // that was not empty
  };
  void copy(Stream& stream);
  void print_lines(Stream& stream, bool all);

  int rank_;
  pid_t pid_ = -1;
  bool running_ = true;
  int exit_code_ = -1;
  int status_ = 0;
  Stream streams_[2];
};

}  // namespace hearth
