#include "support/failing_files.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <map>

namespace hearth {
namespace {

// A file that was created while armed, through a descriptor of our own that survives close and rename.
struct CreatedFile {
  int own_fd = -1;
  off_t flushed = 0;
};

struct Plan {
  bool armed = false;
  FailingFiles::Kind kind = FailingFiles::Kind::count;
  int64_t nth = 0;
  int error = 0;
  int64_t calls = 0;
  std::map<ino_t, CreatedFile> created;
};

// Interposed functions have no other way to reach it.
Plan& plan() {
  static Plan instance;
  return instance;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

ssize_t real_write(int fd, const void* data, size_t bytes) {
  static auto* const function = next<ssize_t(int, const void*, size_t)>("write");
  return function(fd, data, bytes);
}

[[noreturn]] void die() {
  if (plan().kind == FailingFiles::Kind::kill_and_lose)
    for (const auto& [inode, file] : plan().created)
      [[maybe_unused]] const int ignored = ::ftruncate(file.own_fd, file.flushed);
  ::kill(::getpid(), SIGKILL);
  for (;;)
    ::pause();
}

bool is_regular(int fd, struct stat& status) {
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

// Counts a call; true when it has to fail (errno is set).
bool fails() {
  Plan& p = plan();
  if (!p.armed) return false;
  const int64_t number = p.calls++;
  switch (p.kind) {
    case FailingFiles::Kind::count:
      return false;
    case FailingFiles::Kind::once:
      if (number != p.nth) return false;
      break;
    case FailingFiles::Kind::from_then_on:
      if (number < p.nth) return false;
      break;
    case FailingFiles::Kind::kill:
    case FailingFiles::Kind::kill_and_lose:
      if (number == p.nth) die();
      return false;
  }
  errno = p.error;
  return true;
}

void note_created(int fd) {
  struct stat status;
  if (!plan().armed || fd < 0 || !is_regular(fd, status)) return;
  CreatedFile& file = plan().created[status.st_ino];
  if (file.own_fd < 0) file.own_fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 100);
  file.flushed = 0;
}

void note_flushed(int fd) {
  struct stat status;
  if (!plan().armed || !is_regular(fd, status)) return;
  const auto file = plan().created.find(status.st_ino);
  if (file != plan().created.end()) file->second.flushed = status.st_size;
}

bool kills_now() {
  const Plan& p = plan();
  const bool kills = p.kind == FailingFiles::Kind::kill || p.kind == FailingFiles::Kind::kill_and_lose;
  return p.armed && kills && p.calls == p.nth;
}

}  // namespace

FailingFiles::FailingFiles(Kind kind, int64_t nth, int error) {
  plan() = {true, kind, nth, error, 0, {}};
}

FailingFiles::~FailingFiles() {
  plan().armed = false;
  for (const auto& [inode, file] : plan().created)
    ::close(file.own_fd);
  plan().created.clear();
}

int64_t FailingFiles::calls() const {
  return plan().calls;
}

}  // namespace hearth

using hearth::fails;
using hearth::next;

extern "C" int open(const char* path, int flags, ...) {
  static auto* const function = next<int(const char*, int, ...)>("open");
  if ((flags & O_CREAT) == 0) return function(path, flags);
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  if (fails()) return -1;
  const int fd = function(path, flags, mode);
  hearth::note_created(fd);
  return fd;
}

extern "C" ssize_t write(int fd, const void* data, size_t bytes) {
  struct stat status;
  // Not the test's own output.
  if (!hearth::plan().armed || fd <= 2 || !hearth::is_regular(fd, status))
    return hearth::real_write(fd, data, bytes);
  if (hearth::kills_now()) hearth::real_write(fd, data, bytes / 2);
  if (fails()) return -1;
  return hearth::real_write(fd, data, bytes);
}

extern "C" int fsync(int fd) {
  static auto* const function = next<int(int)>("fsync");
  if (fails()) return -1;
  const int result = function(fd);
  if (result == 0) hearth::note_flushed(fd);
  return result;
}

extern "C" int close(int fd) {
  static auto* const function = next<int(int)>("close");
  if (!hearth::plan().armed) return function(fd);
  struct stat status;
  const int flags = ::fcntl(fd, F_GETFL);
  const bool written = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && hearth::is_regular(fd, status);
  if (written && fd < 100 && fails()) {
    const int error = errno;
    function(fd);  // a failed close closes all the same
    errno = error;
    return -1;
  }
  return function(fd);
}

extern "C" int rename(const char* from, const char* to) noexcept {
  static auto* const function = next<int(const char*, const char*)>("rename");
  return fails() ? -1 : function(from, to);
}

extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
  static auto* const function = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return fails() ? -1 : function(from_folder, from, to_folder, to, flags);
}

extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const function = next<int(const char*, mode_t)>("mkdir");
  return fails() ? -1 : function(path, mode);
}
