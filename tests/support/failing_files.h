// A file system that fails on purpose: the n-th call that changes something returns an error, or is the
// moment at which the process is killed and, as in a power failure, whatever was not flushed is lost.  (The
// n-th-failure loop of SQLite's tests.)  Works by defining open, write, fsync, close, rename, renameat2 and
// mkdir in the test executable, where they come before those of the C library.
#pragma once

#include <cstdint>

namespace hearth {

// While one exists, calls are counted.  At most one at a time.
class FailingFiles {
 public:
  enum class Kind : uint8_t {
    count,          // nothing fails
    once,           // call number `nth` fails with `error`
    from_then_on,   // and so does every later one
    kill,           // the process dies at call number `nth`; of a write half is done
    kill_and_lose,  // and files lose everything that was written since their last fsync
  };
  FailingFiles(Kind kind, int64_t nth, int error = 0);
  ~FailingFiles();
  FailingFiles(const FailingFiles&) = delete;
  FailingFiles& operator=(const FailingFiles&) = delete;

  // Calls seen so far.
  int64_t calls() const;
};

}  // namespace hearth
