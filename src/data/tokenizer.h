// Tokenizers: text to token ids and back.
//
// Three kinds: "byte" (256 ids), "char" (the sorted set of Unicode characters of a corpus, as nanoGPT's
// character level), "gpt2" (byte-level BPE, 50257 ids).  A tokenizer is saved beside the shards it made and
// inside every checkpoint as one JSON document, so that generation never depends on outside files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace hearth {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string kind() const = 0;  // "byte" | "char" | "gpt2"
  virtual int64_t vocab() const = 0;     // ids are in [0, vocab)

  // Appends the ids of `text`; special tokens are never matched in ordinary text.
  // Throws Error(data) naming the character and its byte offset when the text cannot be expressed.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  std::vector<int32_t> encode(std::string_view text) const;

  // The bytes of one token: may be a part of a UTF-8 character.  Ids outside [0, vocab) are an Error(data).
  virtual std::string decode(int32_t id) const = 0;
  std::string decode(const std::vector<int32_t>& ids) const;

  // The id put before each document, where the tokenizer has one (gpt2: 50256).
  virtual std::optional<int32_t> end_of_text() const { return std::nullopt; }

  // The whole tokenizer as a JSON document; load_tokenizer(to_json()) gives an equal one.
  virtual std::string to_json() const = 0;

  // SHA-256 of to_json(), stored in checkpoints and compared on resume.
  std::string fingerprint() const;
};

std::unique_ptr<Tokenizer> make_byte_tokenizer();
// The sorted set of the characters of a UTF-8 text.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view corpus);
// From OpenAI's merges file (vocab.bpe, also called merges.txt): ids are derived from the merge order.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const fs::path& merges_file);
// GPT-2's own, from default_gpt2_merges.  Throws Error(data) that names the fetch script when the file is
// missing, and when it does not have GPT-2's 50,000 merges.
std::unique_ptr<Tokenizer> make_default_gpt2_tokenizer();
// Where data/fetch_gpt2_tokenizer.sh puts GPT-2's merges file.
inline constexpr const char* default_gpt2_merges = "data/cache/gpt2/vocab.bpe";

// From to_json().  `where` names the source in errors.
std::unique_ptr<Tokenizer> load_tokenizer(std::string_view json, const std::string& where);
// From a saved tokenizer.json, an OpenAI merges file,
// or an llm.c gpt2_tokenizer.bin (magic 20240328), by content.
std::unique_ptr<Tokenizer> load_tokenizer_file(const fs::path& path);

}  // namespace hearth
