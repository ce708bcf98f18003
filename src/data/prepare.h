// `hearth prepare`: text to token shards on disk.
//
// Writes llm.c shards (see token_file.cpp) train_000001.bin, train_000002.bin, ... and val_000000.bin, ... of
// at most `shard_tokens` tokens, and tokenizer.json.  The folder appears complete or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/tokenizer.h"

namespace hearth {

struct PrepareOptions {
  // Plain text files, one document each, or .jsonl files with a string "text" in each line,
  // one document a line.
  std::vector<fs::path> inputs;
  std::string tokenizer = "byte";  // byte | char | gpt2
  fs::path gpt2_merges;            // empty: default_gpt2_merges
  fs::path out;                    // must not exist, or be an empty folder
  // The last part of all characters becomes the validation shards, in [0, 1); 0 writes none.  A document that
  // lies across the border is cut in two.
  double val_fraction = 0.1;
  int64_t shard_tokens = 100'000'000;
};

struct PrepareResult {
  int64_t documents = 0;
  int64_t characters = 0;
  int64_t vocab = 0;
  int64_t train_tokens = 0;
  int64_t val_tokens = 0;
  std::vector<fs::path> files;  // train shards, val shards, tokenizer.json
};

// With gpt2 each document (and each half of one that was cut) begins with the end-of-text token.  Documents
// are streamed: memory does not grow with the inputs, except for a single line of jsonl or a stretch without
// white space.
PrepareResult prepare(const PrepareOptions& options);

}  // namespace hearth
