// Errors: what a user can cause is an exception whose kind decides the exit code; what only a programmer can
// cause is a failed check() that prints the values and aborts.
//
// Everything stands on this header; it includes nothing of ours.
#pragma once

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>

namespace hearth {

// Process exit codes, as documented in the README.
enum class ExitCode : int {
  done = 0,
  usage = 2,              // command line or configuration
  data = 65,              // data, file or checkpoint
  numerical = 70,         // stopped because the loss or the gradients stayed non-finite
  peer = 71,              // another rank failed, or communication did
  device = 72,            // the accelerator failed
  stopped_early = 75,     // stopped with a good checkpoint; start me again
  interrupted = 128 + 2,  // SIGINT, after saving
  terminated = 128 + 15,  // SIGTERM, after saving
};

// A failure with one sentence for the user: what was found, what was expected, where, and what to do next.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Joins its arguments into one string: text("batch ", 12, " is odd").
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throwing helpers, one per kind of failure.
template <class... Parts>
[[noreturn]] void fail_usage(const Parts&... parts) {
  throw Error(ExitCode::usage, text(parts...));
}
template <class... Parts>
[[noreturn]] void fail_data(const Parts&... parts) {
  throw Error(ExitCode::data, text(parts...));
}
template <class... Parts>
[[noreturn]] void fail_device(const Parts&... parts) {
  throw Error(ExitCode::device, text(parts...));
}

// Prints the place and the message to stderr and aborts.
[[noreturn]] void check_failed(const std::source_location& where, const std::string& message);

// check(condition, "shape of x is ", x.shape()) aborts with the file, the line and the message when the
// condition is false.  For programming errors only; the message is built only on failure.
template <class... Parts>
struct check {
  explicit check(bool condition, const Parts&... parts,
                 const std::source_location& where = std::source_location::current()) {
    if (!condition) [[unlikely]]
      check_failed(where, text(parts...));
  }
};
template <class... Parts>
check(bool, const Parts&...) -> check<Parts...>;

}  // namespace hearth
