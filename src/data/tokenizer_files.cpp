// Reading tokenizers: our own JSON document, OpenAI's merges file, llm.c's binary file, nanoGPT's meta as
// JSON. Which one a file is, is decided by its content.
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/char_tokenizer.h"
#include "data/gpt2_tokenizer.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

std::vector<char32_t> characters_of(const std::string& all, const std::string& where) {
  require_utf8(all, where);
  std::vector<char32_t> characters;
  for (size_t offset = 0; offset < all.size();) {
    const Utf8Character c = utf8_at(all, offset);
    characters.push_back(c.code_point);
    offset += c.length;
  }
  return characters;
}

std::unique_ptr<Tokenizer> char_tokenizer_from(const Json& json, const std::string& where) {
  const auto all = json.find("characters");
  if (all == json.end() || !all->is_string())
    fail_data(where, ": a char tokenizer needs \"characters\", a string of all its characters");
  return make_char_tokenizer(characters_of(all->get<std::string>(), where), where);
}

std::unique_ptr<Tokenizer> gpt2_tokenizer_from(const Json& json, const std::string& where) {
  const auto merges = json.find("merges");
  if (merges == json.end() || !merges->is_array())
    fail_data(where, ": a gpt2 tokenizer needs \"merges\", a list of \"left right\" strings");
  std::vector<std::string> lines;
  for (const Json& line : *merges) {
    if (!line.is_string()) fail_data(where, ": merge ", lines.size(), " is not a string");
    lines.push_back(line.get<std::string>());
  }
  return make_gpt2_tokenizer(parse_merges(lines, where));
}

// nanoGPT's meta.pkl rewritten as JSON: "itos" is a list of characters or an object {"0": "\n", ...}.
std::unique_ptr<Tokenizer> tokenizer_from_nanogpt(const Json& itos, const std::string& where) {
  std::vector<char32_t> characters;
  for (size_t id = 0; id < itos.size(); ++id) {
    const auto entry = itos.is_array() ? itos.begin() + id : itos.find(std::to_string(id));
    if (entry == itos.end() || !entry->is_string())
      fail_data(where, ": \"itos\" has no character for id ", id);
    const std::vector<char32_t> one = characters_of(entry->get<std::string>(), where);
    if (one.size() != 1) fail_data(where, ": \"itos\" must have one character for id ", id);
    characters.push_back(one[0]);
  }
  return make_char_tokenizer(std::move(characters), where);
}

[[noreturn]] void fail_foreign(const Json& json, const std::string& where) {
  if (json.is_object() && json.contains("model") && json.contains("added_tokens"))
    fail_data(where,
              ": this is a tokenizer.json of another program; give GPT-2's merges file (vocab.bpe) instead");
  if (json.is_object() && json.size() > 256)
    fail_data(where,
              ": this looks like GPT-2's encoder.json; give the merges file beside it (vocab.bpe) instead");
  fail_data(where, ": not a tokenizer: expected a JSON object with \"hearth_tokenizer\": 1");
}

Json parse(std::string_view json, const std::string& where) {
  try {
    return Json::parse(json);
  } catch (const Json::exception& error) {
    fail_data(where, ": not valid JSON: ", error.what());
  }
}

bool has_llmc_magic(std::string_view content) {
  constexpr uint32_t magic = 20240328;
  uint32_t first = 0;
  if (content.size() >= sizeof first) std::memcpy(&first, content.data(), sizeof first);
  return first == magic;
}

bool looks_like_json(std::string_view content) {
  const size_t first = content.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && (content[first] == '{' || content[first] == '[');
}

// The first line of a merges file, with or without its "#version" line, is short text with one space.
bool looks_like_merges(std::string_view content) {
  if (content.starts_with("#version")) return true;
  const std::string_view line = content.substr(0, content.find('\n'));
  return line.size() < MergeTable::longest_token && line.find(' ') != std::string_view::npos &&
         !invalid_utf8_offset(line);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(std::string_view document, const std::string& where) {
  const Json json = parse(document, where);
  if (json.is_object() && json.contains("itos") && json["itos"].is_structured())
    return tokenizer_from_nanogpt(json["itos"], where);
  if (!json.is_object() || !json.contains("hearth_tokenizer")) fail_foreign(json, where);
  if (json["hearth_tokenizer"] != 1)
    fail_data(where, ": tokenizer format ", json["hearth_tokenizer"].dump(), "; this program reads format 1");
  const auto kind = json.find("kind");
  if (kind != json.end() && *kind == "byte") return make_byte_tokenizer();
  if (kind != json.end() && *kind == "char") return char_tokenizer_from(json, where);
  if (kind != json.end() && *kind == "gpt2") return gpt2_tokenizer_from(json, where);
  fail_data(where, ": \"kind\" must be \"byte\", \"char\" or \"gpt2\"");
}

std::unique_ptr<Tokenizer> load_tokenizer_file(const fs::path& path) {
  const std::string content = read_file(path);
  const std::string where = path.string();
  if (content.empty()) fail_data(where, " is empty: expected a tokenizer; was a download cut off?");
  if (has_llmc_magic(content)) return make_gpt2_tokenizer(parse_llmc_tokenizer(content, where));
  if (looks_like_json(content)) return load_tokenizer(content, where);
  if (looks_like_merges(content)) return make_gpt2_tokenizer(parse_merges_file(content, where));
  fail_data(where, " is not a tokenizer (it starts with ", quoted(content.substr(0, 16)),
            "): expected a tokenizer.json of this program, GPT-2's vocab.bpe or llm.c's gpt2_tokenizer.bin");
}

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const fs::path& merges_file) {
  const std::string content = read_file(merges_file);
  if (content.empty()) fail_data(merges_file.string(), " is empty: was a download cut off? Fetch it again");
  return make_gpt2_tokenizer(parse_merges_file(content, merges_file.string()));
}

std::unique_ptr<Tokenizer> make_default_gpt2_tokenizer() {
  const fs::path path = default_gpt2_merges;
  if (std::error_code none; !fs::exists(path, none))
    fail_data("the gpt2 tokenizer needs ", path.string(),
              ", which is missing; run data/fetch_gpt2_tokenizer.sh");
  std::unique_ptr<Tokenizer> tokenizer = make_gpt2_tokenizer(path);
  constexpr int64_t gpt2_vocab = 50257;
  if (tokenizer->vocab() != gpt2_vocab)
    fail_data(path.string(), " gives a vocabulary of ", tokenizer->vocab(), ", but GPT-2's has ", gpt2_vocab,
              ": the file is damaged; delete it and run data/fetch_gpt2_tokenizer.sh");
  return tokenizer;
}

}  // namespace hearth
