// Datasets: tokens in memory or in memory-mapped shards, seen as one long sequence of samples.
//
// A sample is `context` inputs and the `context` targets one token later.  Sample windows do not cross shard
// borders: shard s of n tokens holds (n - 1) / context samples,
// window i starting at token i * context + phase.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/tokenizer.h"

namespace hearth {

// A sequence of token ids of one file, validated when it is opened: magic and version, file size against the
// header, every id < vocab.  Errors name the file, the offset, what was found and what was expected.
class TokenShard {
 public:
  virtual ~TokenShard() = default;
  virtual int64_t size() const = 0;
  // Copies tokens [begin, begin + out.size()) as int32.
  virtual void read(int64_t begin, std::span<int32_t> out) const = 0;
  virtual std::string name() const = 0;
};

// Opens a token file by content: llm.c shards (magic 20240520 uint16, 20240801 uint32) or headerless
// little-endian uint16 (nanoGPT's .bin).  Other known formats and odd sizes are refused by name.
std::unique_ptr<TokenShard> open_token_file(const fs::path& path, int64_t vocab);
// Tokens held in memory.
std::unique_ptr<TokenShard> memory_shard(std::vector<int32_t> tokens, std::string name);

class Dataset {
 public:
  // Throws Error(data) when the shards together hold no complete sample.
  Dataset(std::vector<std::unique_ptr<TokenShard>> shards, int64_t context);

  int64_t samples() const;  // per epoch
  int64_t tokens() const;
  int64_t context() const;
  // Copies sample `index` in [0, samples()): inputs and targets of `context` tokens each.
  void read_sample(int64_t index, std::span<int32_t> inputs, std::span<int32_t> targets,
                   int64_t phase = 0) const;
  // Names, sizes and a checksum of the first and last 64 KiB of each shard, hashed: compared on resume.
  std::string fingerprint() const;
  // "data/x.bin (1,003,854 tokens)" or "3 shards, 300,000,000 tokens".
  std::string description() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// What `[data]` of a config asks for.
struct DataConfig {
  std::string train;  // shards, globs, or plain text files, separated by commas
  std::string val;    // the same; empty: the last val_fraction of train
  double val_fraction = 0.1;
  std::string tokenizer =
      "auto";  // auto | byte | char | gpt2 | a tokenizer file; auto: tokenizer.json beside the shards
};

struct Corpus {
  Dataset train;
  Dataset val;
  std::shared_ptr<const Tokenizer> tokenizer;  // null when only token shards without a tokenizer are known
  int64_t vocab;            // the tokenizer's, or 0 when unknown (then the config must say)
  std::string description;  // one line for the start-up report
};

// Opens or tokenises everything that `config` names.  `vocab` is model.vocab or 0 when it is to be inferred.
// Text is split at floor((1 - val_fraction) * characters) as nanoGPT does (characters, then tokens).
Corpus open_corpus(const DataConfig& config, int64_t context, int64_t vocab);

}  // namespace hearth
