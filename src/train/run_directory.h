// The run directory: config.toml, log.txt, metrics.jsonl, TensorBoard events, checkpoints/, and a lock.
//
// Nothing is created before the whole configuration, the data and the device have been checked, so that a
// refused run leaves no trace.
//
// The lock is flock(2) on RUN/lock, which holds "PID HOST\n" while a run is alive and nothing after it ended
// in order.  The kernel frees it when the process dies, however it dies.  The file itself is never deleted:
// whoever opened it before would lock a file that nobody else sees.
#pragma once

#include <string>

#include "base/files.h"

namespace hearth {

class RunDirectory {
 public:
  // Creates the directory (parents too) and takes its lock.  A lock held by a living process is an
  // Error(usage) naming its pid and host; a stale lock is taken over, see note().
  explicit RunDirectory(const fs::path& path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const fs::path& path() const { return path_; }
  fs::path checkpoints() const { return path_ / "checkpoints"; }
  fs::path metrics() const { return path_ / "metrics.jsonl"; }
  fs::path log() const { return path_ / "log.txt"; }
  fs::path config() const { return path_ / "config.toml"; }

  // A sentence for the log when the lock was taken over from a process that did not end in order (on a shared
  // file system perhaps one of another host), or when the file system has no locks; else empty.
  const std::string& note() const { return note_; }

  // Whether the directory at `path` holds a run already (a metrics file or a checkpoint).
  static bool used(const fs::path& path);
  // Checks, without creating anything that stays,
  // that the directory could be created and written: Error(usage).
  static void check_writable(const fs::path& path);

 private:
  void take_lock();

  fs::path path_;
  std::string note_;
  int lock_fd_ = -1;
};

}  // namespace hearth
