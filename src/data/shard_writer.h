// Writing llm.c shards (see token_file.cpp for the layout).
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"

namespace hearth {

// A series of shards prefix_000001.bin, prefix_000002.bin, ... each of at most `shard_tokens` tokens; uint16
// when the vocabulary fits, else uint32.  Files are durable after finish();
// a series without tokens has no file.
class ShardSeries {
 public:
  ShardSeries(fs::path folder, std::string prefix, int first_number, int64_t vocab, int64_t shard_tokens);
  ~ShardSeries();
  ShardSeries(const ShardSeries&) = delete;
  ShardSeries& operator=(const ShardSeries&) = delete;

  void write(std::span<const int32_t> ids);
  void finish();

  int64_t tokens() const { return tokens_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  void open_next();
  void close_current();
  void put(const void* bytes, size_t size);
  [[noreturn]] void fail() const;

  fs::path folder_;
  std::string prefix_;
  int next_number_;
  bool wide_;
  int64_t shard_tokens_;
  std::FILE* file_ = nullptr;
  int64_t in_current_ = 0;
  int64_t tokens_ = 0;
  std::vector<std::string> names_;
};

}  // namespace hearth
