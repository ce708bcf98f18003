// Files: system calls wrapped once, so that every failure names the path, the reason and, where it is known,
// the way out.  See files.h for the protocol of durable writes.
#include "base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace hearth {
namespace {

// What a person can do about the failures that are not programming errors.
const char* way_out(int error) {
  switch (error) {
    case ENOENT:
      return "; check the path for a typing error, or create the missing folder";
    case ENOTDIR:
      return "; a part of this path is a file where a folder is needed";
    case EISDIR:
      return "; name a file instead of a folder";
    case EACCES:
    case EPERM:
      return "; change its permissions or choose another place";
    case EROFS:
      return "; choose a place that can be written";
    case ENOSPC:
    case EDQUOT:
      return "; free some space or choose another place";
    case EFBIG:
      return "; raise the limit on file sizes (ulimit -f)";
    case EMFILE:
    case ENFILE:
      return "; raise the limit on open files (ulimit -n)";
    default:
      return "";
  }
}

// "cannot write runs/a/log.txt: No space left on device; free some space ..."
[[noreturn]] void fail_system(const char* action, const fs::path& path, int error) {
  fail_data("cannot ", action, " ", path.string(), ": ", std::system_category().message(error),
            way_out(error));
}

// Closes on every way out of a function.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

int open_or_fail(const char* action, const fs::path& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail_system(action, path, errno);
  return fd;
}

struct stat stat_or_fail(int fd, const fs::path& path) {
  struct stat status;
  if (::fstat(fd, &status) != 0) fail_system("examine", path, errno);
  return status;
}

// The folder that holds the name: "." for a bare name.
fs::path folder_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  // O_NONBLOCK: opening a named pipe without a writer must fail below, not wait for ever.
  const Descriptor file(open_or_fail("open", path, O_RDONLY | O_NONBLOCK));
  const struct stat status = stat_or_fail(file.get(), path);
  if (S_ISDIR(status.st_mode)) fail_system("read", path, EISDIR);
  if (!S_ISREG(status.st_mode))
    fail_data("cannot map ", path.string(),
              ": it is a pipe or a device; copy it to a regular file and name that");
  if (status.st_size == 0) return;
  void* data = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) fail_system("map", path, errno);
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<size_t>(status.st_size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  // `other`'s destructor unmaps what this one held.
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

FileWriter::FileWriter(const fs::path& path)
    : path_(path), fd_(open_or_fail("create", path, O_WRONLY | O_CREAT | O_TRUNC)) {}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (finished_) return;
  // Only a regular file is ours to delete: the path may name a device or a link.
  struct stat status;
  if (::lstat(path_.c_str(), &status) == 0 && S_ISREG(status.st_mode)) ::unlink(path_.c_str());
}

void FileWriter::write(std::span<const std::byte> bytes) {
  check(fd_ >= 0, "write to ", path_.string(), " after finish()");
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(fd_, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_system("write", path_, errno);
    written += static_cast<size_t>(n);
  }
  size_ += bytes.size();
  crc_ = crc32c(bytes, crc_);
}

void FileWriter::write(std::string_view chars) {
  write(std::as_bytes(std::span(chars)));
}

void FileWriter::finish() {
  check(fd_ >= 0, "finish() called twice for ", path_.string());
  if (::fsync(fd_) != 0) fail_system("flush to disk", path_, errno);
  // Network file systems report a full disk as late as here.
  if (::close(std::exchange(fd_, -1)) != 0) fail_system("close", path_, errno);
  finished_ = true;
}

std::string read_file(const fs::path& path) {
  const Descriptor file(open_or_fail("open", path, O_RDONLY));
  const struct stat status = stat_or_fail(file.get(), path);
  // The size is only a hint: pipes and files of /proc report zero.
  std::string content(static_cast<size_t>(status.st_size) + 4096, '\0');
  size_t used = 0;
  for (;;) {
    if (used == content.size()) content.resize(2 * content.size());
    const ssize_t n = ::read(file.get(), content.data() + used, content.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_system("read", path, errno);
    if (n == 0) break;
    used += static_cast<size_t>(n);
  }
  content.resize(used);
  return content;
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  // A fixed name: what a crash leaves behind is overwritten by the next attempt instead of piling up.
  fs::path temporary = path;
  temporary += ".tmp";
  FileWriter writer(temporary);
  writer.write(content);
  writer.finish();
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    fail_system("replace", path, error);
  }
  sync_folder(folder_of(path));
}

void sync_folder(const fs::path& folder) {
  const Descriptor file(open_or_fail("open folder", folder, O_RDONLY | O_DIRECTORY));
  // EINVAL: a file system that cannot flush folders; there is nothing better to do.
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail_system("flush folder", folder, errno);
}

uint64_t free_disk_bytes(const fs::path& path) {
  fs::path existing = fs::absolute(path);
  struct statvfs status;
  while (::statvfs(existing.c_str(), &status) != 0) {
    if ((errno != ENOENT && errno != ENOTDIR) || existing == existing.root_path())
      fail_system("read the free space of", path, errno);
    existing = existing.parent_path();
  }
  return uint64_t{status.f_bavail} * status.f_frsize;
}

}  // namespace hearth
