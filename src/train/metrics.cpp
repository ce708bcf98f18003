// Lines of metrics.jsonl, and the file they are appended to.
#include "train/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace hearth {
namespace {

// A JSON string; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view value) {
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

[[noreturn]] void fail_open(const fs::path& path) {
  fail_data("cannot open ", path.string(), " for writing: ", std::system_category().message(errno));
}

// The end of the last whole line within the first `limit` bytes.
uint64_t end_of_last_line(int fd, uint64_t limit, const fs::path& path) {
  char block[4096];
  while (limit > 0) {
    const uint64_t begin = limit - std::min<uint64_t>(limit, sizeof block);
    const ssize_t n = ::pread(fd, block, limit - begin, static_cast<off_t>(begin));
    if (n < 0 && errno == EINTR) continue;
    if (n != static_cast<ssize_t>(limit - begin)) fail_open(path);
    const size_t newline = std::string_view(block, static_cast<size_t>(n)).rfind('\n');
    if (newline != std::string_view::npos) return begin + newline + 1;
    limit = begin;
  }
  return 0;
}

}  // namespace

JsonLine::JsonLine(const std::string& event) : text_("{\"event\":" + json_string(event)) {}

JsonLine& JsonLine::add(const std::string& key, double value) {
  if (std::isfinite(value)) return raw(key, nine_digits(value));
  finite_ = false;
  return add_null(key);
}

JsonLine& JsonLine::add(const std::string& key, std::string_view value) {
  return raw(key, json_string(value));
}

JsonLine& JsonLine::add_null(const std::string& key) {
  return raw(key, "null");
}

JsonLine& JsonLine::raw(const std::string& key, const std::string& literal) {
  text_ += ',' + json_string(key) + ':' + literal;
  return *this;
}

std::string JsonLine::str() const {
  return text_ + (finite_ ? "}" : ",\"finite\":false}");
}

std::string step_line(const StepMetrics& m) {
  JsonLine line("step");
  line.add("step", m.step).add("loss", m.loss).add("grad_norm", m.grad_norm).add("lr", m.lr);
  line.add("tokens", m.tokens).add("tokens_per_second", m.tokens_per_second);
  m.mfu ? line.add("mfu", *m.mfu) : line.add_null("mfu");
  line.add("ms", m.ms);
  if (m.skipped) line.add("skipped", true);
  return line.str();
}

LineFile::LineFile(const fs::path& path, uint64_t keep_bytes) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  struct stat status;
  if (fd_ < 0 || ::fstat(fd_, &status) != 0) fail_open(path);
  if (!S_ISREG(status.st_mode)) return;
  const uint64_t size = static_cast<uint64_t>(status.st_size);
  bytes_ = end_of_last_line(fd_, std::min(size, keep_bytes), path);
  if (bytes_ != size && ::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) fail_open(path);
}

LineFile::~LineFile() {
  if (fd_ >= 0) ::close(fd_);
}

void LineFile::append(const std::string& line) {
  append_bytes(line + '\n');
}

void LineFile::append_bytes(std::string_view bytes) {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(fd_, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      if (failure_.empty())
        failure_ = text("cannot write ", path_.string(), ": ", std::system_category().message(errno),
                        "; its lines are missing until that is repaired");
      // Half a line would spoil the next one.
      [[maybe_unused]] const int ignored = ::ftruncate(fd_, static_cast<off_t>(bytes_));
      return;
    }
    written += static_cast<size_t>(n);
  }
  bytes_ += bytes.size();
}

void LineFile::sync() {
  if (::fsync(fd_) != 0 && errno != EINVAL && failure_.empty())
    failure_ = text("cannot flush ", path_.string(), " to disk: ", std::system_category().message(errno));
}

}  // namespace hearth
