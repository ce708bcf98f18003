// Writing llm.c shards; see shard_writer.h.
#include "data/shard_writer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "base/error.h"

namespace hearth {

ShardSeries::ShardSeries(fs::path folder, std::string prefix, int first_number, int64_t vocab,
                         int64_t shard_tokens)
    : folder_(std::move(folder)),
      prefix_(std::move(prefix)),
      next_number_(first_number),
      wide_(vocab > UINT16_MAX + 1),
      shard_tokens_(shard_tokens) {}

ShardSeries::~ShardSeries() {
  if (file_) std::fclose(file_);
}

void ShardSeries::fail() const {
  const int reason = errno;
  fail_data("cannot write ", (folder_ / names_.back()).string(), ": ",
            std::system_category().message(reason));
}

void ShardSeries::put(const void* bytes, size_t size) {
  if (std::fwrite(bytes, 1, size, file_) != size) fail();
}

void ShardSeries::open_next() {
  char number[16];
  std::snprintf(number, sizeof number, "_%06d", next_number_++);
  names_.push_back(prefix_ + number + ".bin");
  file_ = std::fopen((folder_ / names_.back()).c_str(), "wb");
  if (!file_) fail();
  in_current_ = 0;
  // The header is written again, with the number of tokens, when the shard is complete.
  const std::array<int32_t, 256> blank{};
  put(blank.data(), sizeof blank);
}

void ShardSeries::close_current() {
  if (!file_) return;
  std::array<int32_t, 256> header{};
  header[0] = wide_ ? 20240801 : 20240520;
  header[1] = wide_ ? 7 : 1;
  header[2] = static_cast<int32_t>(in_current_);
  if (std::fseek(file_, 0, SEEK_SET) != 0) fail();
  put(header.data(), sizeof header);
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) fail();
  std::FILE* file = file_;
  file_ = nullptr;
  if (std::fclose(file) != 0) fail();
}

void ShardSeries::write(std::span<const int32_t> ids) {
  while (!ids.empty()) {
    if (file_ && in_current_ == shard_tokens_) close_current();
    if (!file_) open_next();
    const int64_t count = std::min<int64_t>(std::ssize(ids), shard_tokens_ - in_current_);
    const auto part = ids.first(count);
    if (wide_) {
      put(part.data(), part.size_bytes());
    } else {
      const std::vector<uint16_t> narrow(part.begin(), part.end());
      put(narrow.data(), narrow.size() * sizeof(uint16_t));
    }
    in_current_ += count;
    tokens_ += count;
    ids = ids.subspan(count);
  }
}

void ShardSeries::finish() {
  close_current();
}

}  // namespace hearth
