// Pieces of token shards; what corpus.cpp needs beyond dataset.h.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace hearth {

// Tokens [begin, end) of a shard, under the same name.
std::unique_ptr<TokenShard> slice_shard(std::shared_ptr<const TokenShard> whole, int64_t begin, int64_t end);

// Whether `path` is to be opened as tokens rather than read as text: a known binary magic, or the name *.bin.
bool is_token_file(const fs::path& path);

// The vocabulary that the format of a token file implies: 50257 for llm.c's GPT-2 shards, 0 for all others.
int64_t implied_vocab(const fs::path& path);

}  // namespace hearth
