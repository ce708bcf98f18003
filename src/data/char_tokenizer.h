// The character-level tokenizer: one id per Unicode character of a corpus.
//
// tokenizer.h makes one from a text in memory; `hearth prepare` collects the characters of a stream of
// documents first (CharacterSet), because its inputs need not fit into memory.
#pragma once

#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace hearth {

class CharacterSet {
 public:
  // Throws Error(data) with `where` and the offset when the text is not UTF-8.
  void add(std::string_view text, std::string_view where);
  std::vector<char32_t> sorted() const { return {seen_.begin(), seen_.end()}; }

 private:
  std::set<char32_t> seen_;
};

// Id i is characters[i].  The characters must be distinct and valid; `where` names their source in errors.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<char32_t> characters, const std::string& where);

}  // namespace hearth
