// GPT-2's tokenizer: cut the text with GPT-2's pattern (PCRE2), merge each piece (bpe.h),
// remember frequent pieces.
#include "data/gpt2_tokenizer.h"

#include <cstring>
#include <mutex>
#include <unordered_map>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/utf8.h"

namespace hearth {
namespace {

// GPT-2's pattern:  's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// `\s` is written out as Unicode's White_Space, because PCRE2's own also takes U+180E.  Quantifiers after
// which nothing can fail are possessive: the same matches without a backtracking stack.
std::string gpt2_pattern() {
  const std::string space =
      R"(\x{09}-\x{0d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}++| ?\p{N}++| ?[^)" + space + R"(\p{L}\p{N}]++|[)" + space +
         "]+(?![^" + space + "])|[" + space + "]++";
}

// Cuts text into pieces.
class Splitter {
 public:
  Splitter() {
    int error = 0;
    PCRE2_SIZE at = 0;
    const std::string pattern = gpt2_pattern();
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                          &error, &at, nullptr);
    check(code_ != nullptr, "GPT-2's pattern does not compile: PCRE2 error ", error, " at ", at);
    // Where there is no JIT the interpreter gives the same matches, only slower.
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Splitter() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;

  // End of the piece that starts at `begin` < text.size(); the text must be UTF-8.
  size_t piece_end(std::string_view text, size_t begin) {
    const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                                  PCRE2_NO_UTF_CHECK, match_, nullptr);
    check(found > 0, "GPT-2's pattern failed at byte ", begin, " with PCRE2 error ", found);
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match_);
    check(span[0] == begin && span[1] > begin, "GPT-2's pattern left a gap at byte ", begin);
    return span[1];
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};

// Merged pieces by their bytes.  Emptied when full: refilling costs little, and memory stays bounded.
class PieceCache {
 public:
  const std::vector<int32_t>* find(std::string_view piece) const {
    const auto found = pieces_.find(piece);
    return found == pieces_.end() ? nullptr : &found->second;
  }
  void insert(std::string_view piece, std::vector<int32_t> ids) {
    if (piece.size() > longest) return;
    if (pieces_.size() >= capacity) pieces_.clear();
    pieces_.emplace(piece, std::move(ids));
  }

 private:
  static constexpr size_t longest = 64;
  static constexpr size_t capacity = 1 << 17;
  std::unordered_map<std::string, std::vector<int32_t>, StringHash, std::equal_to<>> pieces_;
};

class Gpt2Tokenizer final : public Tokenizer {
 public:
  explicit Gpt2Tokenizer(MergeTable merges) : merges_(std::move(merges)) {}

  std::string kind() const override { return "gpt2"; }
  int64_t vocab() const override { return merges_.size() + 1; }
  std::optional<int32_t> end_of_text() const override { return merges_.size(); }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    require_utf8(text, "the text");
    const std::lock_guard lock(mutex_);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = splitter_.piece_end(text, begin);
      append_piece(text.substr(begin, end - begin), ids);
      begin = end;
    }
  }

  std::string decode(int32_t id) const override {
    if (id < 0 || id >= vocab())
      fail_data("token id ", id, " is outside the gpt2 tokenizer's vocabulary of ", vocab());
    return id == merges_.size() ? "<|endoftext|>" : merges_.bytes(id);
  }

  std::string to_json() const override {
    nlohmann::ordered_json json;
    json["hearth_tokenizer"] = 1;
    json["kind"] = kind();
    auto lines = nlohmann::ordered_json::array();
    for (const auto& [left, right] : merges_.merges())
      lines.push_back(byte_symbols(merges_.bytes(left)) + " " + byte_symbols(merges_.bytes(right)));
    json["merges"] = std::move(lines);
    return json.dump() + "\n";
  }

 private:
  void append_piece(std::string_view piece, std::vector<int32_t>& ids) const {
    if (const std::vector<int32_t>* known = cache_.find(piece)) {
      ids.insert(ids.end(), known->begin(), known->end());
      return;
    }
    std::vector<int32_t> merged;
    merges_.encode_piece(piece, merged);
    ids.insert(ids.end(), merged.begin(), merged.end());
    cache_.insert(piece, std::move(merged));
  }

  MergeTable merges_;
  // Scratch of encode(), which is const for its callers and may be called from several threads.
  mutable std::mutex mutex_;
  mutable Splitter splitter_;
  mutable PieceCache cache_;
};

// GPT-2 writes byte b as the character b when that is printable, else as U+0100 + n for the n-th other byte.
// In the order of the ids the first 188 are printable.
constexpr int printable_bytes = 188;

char32_t symbol_of_id(int id) {
  return id < printable_bytes ? char32_t{gpt2_byte_order()[id]} : char32_t(0x100 + id - printable_bytes);
}

// Byte symbols back to bytes; nothing when a character is no byte symbol.
std::optional<std::string> bytes_of_symbols(std::string_view symbols,
                                            const std::unordered_map<char32_t, char>& byte_of_symbol) {
  std::string bytes;
  for (size_t offset = 0; offset < symbols.size();) {
    const Utf8Character c = utf8_at(symbols, offset);
    const auto found = byte_of_symbol.find(c.code_point);
    if (c.length == 0 || found == byte_of_symbol.end()) return std::nullopt;
    bytes += found->second;
    offset += c.length;
  }
  return bytes;
}

// Builds a table line by line; `place(i)` names line i in errors.
class MergeReader {
 public:
  MergeReader() {
    for (int id = 0; id < 256; ++id) {
      byte_of_symbol_[symbol_of_id(id)] = static_cast<char>(gpt2_byte_order()[id]);
      ids_[table_.bytes(id)] = id;
    }
  }

  void add(std::string_view line, const std::string& place) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      fail_data(place, ": expected two byte symbols separated by one space (a line of GPT-2's vocab.bpe)");
    const int32_t left = id_of(line.substr(0, space), place);
    const int32_t right = id_of(line.substr(space + 1), place);
    if (!table_.add(left, right))
      fail_data(place, ": this merge was listed before or makes a token longer than ",
                MergeTable::longest_token, " bytes");
    ids_.emplace(table_.bytes(table_.size() - 1), table_.size() - 1);
  }

  MergeTable take() { return std::move(table_); }

 private:
  int32_t id_of(std::string_view symbols, const std::string& place) const {
    const std::optional<std::string> bytes = bytes_of_symbols(symbols, byte_of_symbol_);
    if (!bytes || bytes->empty()) fail_data(place, ": not written in GPT-2's byte symbols");
    const auto found = ids_.find(*bytes);
    if (found == ids_.end()) fail_data(place, ": merges a token that no earlier line makes");
    return found->second;
  }

  MergeTable table_;
  std::unordered_map<char32_t, char> byte_of_symbol_;
  std::unordered_map<std::string, int32_t> ids_;
};

uint32_t word_at(std::string_view content, size_t index) {
  uint32_t word;
  std::memcpy(&word, content.data() + 4 * index, sizeof word);
  return word;
}

// The length-prefixed tokens of an llm.c tokenizer file.
std::vector<std::string_view> llmc_tokens(std::string_view content, uint32_t count,
                                          const std::string& where) {
  std::vector<std::string_view> tokens;
  size_t offset = 1024;
  for (uint32_t id = 0; id < count; ++id) {
    const size_t length = offset < content.size() ? static_cast<uint8_t>(content[offset]) : 0;
    if (length == 0 || content.size() - offset - 1 < length)
      fail_data(where, ": cut off or damaged at token ", id, " of ", count, " (byte ", offset, ")");
    tokens.push_back(content.substr(offset + 1, length));
    offset += 1 + length;
  }
  if (offset != content.size())
    fail_data(where, ": ", content.size() - offset, " bytes follow the last of its ", count, " tokens");
  return tokens;
}

}  // namespace

std::string byte_symbols(std::string_view bytes) {
  static const std::array<char32_t, 256> symbols = [] {
    std::array<char32_t, 256> table;
    for (int id = 0; id < 256; ++id)
      table[gpt2_byte_order()[id]] = symbol_of_id(id);
    return table;
  }();
  std::string out;
  for (const char c : bytes)
    append_utf8(out, symbols[static_cast<uint8_t>(c)]);
  return out;
}

MergeTable parse_merges(const std::vector<std::string>& lines, const std::string& where) {
  MergeReader reader;
  for (size_t i = 0; i < lines.size(); ++i)
    reader.add(lines[i], text(where, ": merge ", i));
  return reader.take();
}

MergeTable parse_merges_file(std::string_view content, const std::string& where) {
  MergeReader reader;
  for (size_t line_number = 1; !content.empty(); ++line_number) {
    const size_t length = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, length);
    content.remove_prefix(std::min(length + 1, content.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool comment = line_number == 1 && line.starts_with("#version");
    if (!comment && !line.empty()) reader.add(line, text(where, ":", line_number));
  }
  return reader.take();
}

MergeTable parse_llmc_tokenizer(std::string_view content, const std::string& where) {
  if (content.size() < 1024) fail_data(where, ": ", content.size(), " bytes, but the header alone has 1024");
  const uint32_t version = word_at(content, 1);
  if (version != 1 && version != 2)
    fail_data(where, ": llm.c tokenizer of version ", version, "; versions 1 and 2 can be read");
  const uint32_t count = word_at(content, 2);
  if (count < 257 || content.size() / 2 < count)
    fail_data(where, ": the header announces ", count, " tokens, the file has ", content.size(), " bytes");
  const uint32_t end_of_text = version == 1 ? count - 1 : word_at(content, 3);
  if (end_of_text != count - 1)
    fail_data(where, ": end-of-text id ", end_of_text, "; GPT-2 tokenizers have it last (", count - 1, ")");

  const std::vector<std::string_view> tokens = llmc_tokens(content, count, where);
  MergeTable table;
  for (int32_t id = 0; id < 256; ++id)
    if (tokens[id] != table.bytes(id))
      fail_data(where, ": token ", id, " is not the byte that GPT-2 has there");
  for (uint32_t id = 256; id < count - 1; ++id) {
    // Every merge before this one is known,
    // so this token's bytes must merge to exactly the two it is made of.
    std::vector<int32_t> parts;
    table.encode_piece(tokens[id], parts);
    if (parts.size() != 2 || !table.add(parts[0], parts[1]))
      fail_data(where, ": token ", id, " is not a merge of two earlier tokens");
  }
  return table;
}

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(MergeTable merges) {
  return std::make_unique<Gpt2Tokenizer>(std::move(merges));
}

}  // namespace hearth
