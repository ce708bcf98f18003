// The run directory and its lock.
#include "train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "train/checkpoint.h"

namespace hearth {
namespace {

std::string reason(int error) {
  return std::system_category().message(error);
}

std::string this_host() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "unknown";
  return name;
}

// Who a lock file names; pid 0: nobody.
struct Holder {
  int64_t pid = 0;
  std::string host;
};

Holder read_holder(int fd) {
  char content[512];
  const ssize_t n = ::pread(fd, content, sizeof content, 0);
  Holder holder;
  std::istringstream in(std::string(content, n > 0 ? static_cast<size_t>(n) : 0));
  if (!(in >> holder.pid >> holder.host) || holder.pid <= 0) return {};
  return holder;
}

// The holder writes its name right after it got the lock: wait for that a little.
Holder read_living_holder(int fd) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    const Holder holder = read_holder(fd);
    if (holder.pid != 0) return holder;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

// False: somebody else holds the lock.
bool lock_file(int fd, const fs::path& path, std::string& note) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return false;
    note = text("cannot lock ", path.string(), " (", reason(errno),
                "): nothing keeps a second run out of this directory");
    break;
  }
  return true;
}

// The nearest ancestor of `path` (or itself) that exists.
fs::path nearest_existing(const fs::path& path) {
  fs::path at = fs::absolute(path).lexically_normal();
  std::error_code error;
  while (!fs::exists(fs::symlink_status(at, error)) && at != at.root_path())
    at = at.parent_path();
  return at;
}

}  // namespace

RunDirectory::RunDirectory(const fs::path& path) : path_(path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    fail_usage("cannot create the run directory ", path.string(), ": ", error.message(),
               "; choose another one with --run.dir=DIR");
  take_lock();
}

void RunDirectory::take_lock() {
  const fs::path lock = path_ / "lock";
  lock_fd_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_fd_ < 0)
    fail_usage("cannot write in the run directory ", path_.string(), ": ", reason(errno),
               "; change its permissions or choose another one with --run.dir=DIR");
  if (!lock_file(lock_fd_, lock, note_)) {
    const Holder holder = read_living_holder(lock_fd_);
    ::close(std::exchange(lock_fd_, -1));
    const std::string who =
        holder.pid == 0 ? "another process" : text("process ", holder.pid, " on host ", holder.host);
    fail_usage("the run directory ", path_.string(), " is in use by ", who,
               "; stop that run, or choose another directory with --run.dir=DIR");
  }
  const Holder before = read_holder(lock_fd_);
  const std::string host = this_host();
  if (before.pid != 0 && note_.empty()) {
    note_ = text("took over the lock of process ", before.pid, " on host ", before.host,
                 ", which did not end in order");
    // Not every network file system passes locks on between hosts.
    if (before.host != host) note_ += "; make sure that it no longer runs there";
  }
  const std::string content = text(::getpid(), " ", host, "\n");
  // A full disk may leave the file empty; the lock holds all the same.
  [[maybe_unused]] const bool named =
      ::ftruncate(lock_fd_, 0) == 0 && ::pwrite(lock_fd_, content.data(), content.size(), 0) > 0;
}

RunDirectory::~RunDirectory() {
  if (lock_fd_ < 0) return;
  [[maybe_unused]] const int ignored = ::ftruncate(lock_fd_, 0);
  ::close(lock_fd_);
}

bool RunDirectory::used(const fs::path& path) {
  std::error_code error;
  const uintmax_t metrics_bytes = fs::file_size(path / "metrics.jsonl", error);
  if (!error && metrics_bytes > 0) return true;
  return !list_checkpoints(path / "checkpoints").empty();
}

void RunDirectory::check_writable(const fs::path& path) {
  const fs::path existing = nearest_existing(path);
  std::error_code error;
  if (!fs::is_directory(existing, error))
    fail_usage("cannot use ", path.string(), " as run directory: ", existing.string(),
               " is not a directory; choose another one with --run.dir=DIR");
  // Only an attempt tells: permissions, read-only mounts and quotas are not all visible in the mode bits.
  std::string probe = (existing / ".hearth-probe-XXXXXX").string();
  const int fd = ::mkostemp(probe.data(), O_CLOEXEC);
  if (fd < 0)
    fail_usage("cannot write in ", existing.string(), ", where the run directory ", path.string(),
               " belongs: ", reason(errno), "; choose another one with --run.dir=DIR");
  ::close(fd);
  ::unlink(probe.c_str());
}

}  // namespace hearth
