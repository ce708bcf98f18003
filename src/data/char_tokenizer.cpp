// The character-level tokenizer; see char_tokenizer.h.
#include "data/char_tokenizer.h"

#include <array>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/utf8.h"

namespace hearth {
namespace {

constexpr int32_t no_id = -1;

class CharTokenizer final : public Tokenizer {
 public:
  explicit CharTokenizer(std::vector<char32_t> characters) : characters_(std::move(characters)) {
    ascii_.fill(no_id);
    for (size_t id = 0; id < characters_.size(); ++id) {
      ids_[characters_[id]] = static_cast<int32_t>(id);
      if (characters_[id] < ascii_.size()) ascii_[characters_[id]] = static_cast<int32_t>(id);
    }
  }

  std::string kind() const override { return "char"; }
  int64_t vocab() const override { return static_cast<int64_t>(characters_.size()); }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (size_t offset = 0; offset < text.size();) {
      const Utf8Character c = utf8_at(text, offset);
      if (c.length == 0) require_utf8(text, "the text");
      const int32_t id = find(c.code_point);
      if (id == no_id) fail_unknown(c.code_point, offset);
      ids.push_back(id);
      offset += c.length;
    }
  }

  std::string decode(int32_t id) const override {
    if (id < 0 || id >= vocab())
      fail_data("token id ", id, " is outside this char tokenizer's vocabulary of ", vocab());
    std::string bytes;
    append_utf8(bytes, characters_[id]);
    return bytes;
  }

  std::string to_json() const override {
    nlohmann::ordered_json json;
    json["hearth_tokenizer"] = 1;
    json["kind"] = kind();
    json["characters"] = all_characters();
    return json.dump() + "\n";
  }

 private:
  int32_t find(char32_t c) const {
    if (c < ascii_.size()) return ascii_[c];
    const auto found = ids_.find(c);
    return found == ids_.end() ? no_id : found->second;
  }

  std::string all_characters() const {
    std::string all;
    for (const char32_t c : characters_)
      append_utf8(all, c);
    return all;
  }

  [[noreturn]] void fail_unknown(char32_t c, size_t offset) const {
    fail_data("the character ", describe_character(c), " at byte ", offset, " is not one of the ", vocab(),
              " characters of the char tokenizer: ", quoted(all_characters(), 200));
  }

  std::vector<char32_t> characters_;
  std::array<int32_t, 128> ascii_;
  std::unordered_map<char32_t, int32_t> ids_;
};

}  // namespace

void CharacterSet::add(std::string_view text, std::string_view where) {
  std::array<bool, 128> ascii{};
  for (size_t offset = 0; offset < text.size();) {
    const Utf8Character c = utf8_at(text, offset);
    if (c.length == 0) require_utf8(text, where);
    if (c.length == 1)
      ascii[c.code_point] = true;
    else
      seen_.insert(c.code_point);
    offset += c.length;
  }
  for (char32_t c = 0; c < ascii.size(); ++c)
    if (ascii[c]) seen_.insert(c);
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<char32_t> characters, const std::string& where) {
  if (characters.empty()) fail_data(where, " has no characters: a char tokenizer needs at least one");
  std::set<char32_t> seen;
  for (const char32_t c : characters)
    if (!seen.insert(c).second) fail_data(where, " lists the character ", describe_character(c), " twice");
  return std::make_unique<CharTokenizer>(std::move(characters));
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view corpus) {
  CharacterSet set;
  set.add(corpus, "the text");
  return make_char_tokenizer(set.sorted(), "the text");
}

}  // namespace hearth
