// Documents of text and jsonl files; see documents.h.
#include "data/documents.h"

#include <sys/mman.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/utf8.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

std::string text_of_line(std::string_view line, const std::string& where) {
  Json json;
  try {
    json = Json::parse(line);
  } catch (const Json::exception& error) {
    fail_data(where, ": not valid JSON (", quoted(line), "): ", error.what());
  }
  if (!json.is_object())
    fail_data(where, ": expected an object with a string \"text\", found ", json.type_name());
  const auto found = json.find("text");
  if (found == json.end()) fail_data(where, ": the object has no \"text\"");
  if (!found->is_string()) fail_data(where, ": \"text\" is ", found->type_name(), ", expected a string");
  return found->get<std::string>();
}

// Whether the character that ends just before `offset` > 0 is UTF-8 and no white space.
bool solid_before(std::string_view text, size_t offset) {
  size_t begin = offset - 1;
  while (begin > 0 && offset - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80)
    --begin;
  const Utf8Character c = utf8_at(text.substr(0, offset), begin);
  return begin + c.length == offset && !is_white_space(c.code_point);
}

bool may_break_at(std::string_view text, size_t offset) {
  return (text[offset] == ' ' || text[offset] == '\n') && solid_before(text, offset);
}

}  // namespace

void for_each_json_line(std::string_view content, const std::string& name, const DocumentVisitor& visit) {
  for (int64_t number = 1; !content.empty(); ++number) {
    const size_t length = std::min(content.find('\n'), content.size());
    const std::string_view line = content.substr(0, length);
    content.remove_prefix(std::min(length + 1, content.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = text(name, ":", number);
    visit(text_of_line(line, where), where);
  }
}

void for_each_document(const std::vector<fs::path>& inputs, const DocumentVisitor& visit) {
  for (const fs::path& path : inputs) {
    const MappedFile file(path);
    const std::string name = path.string();
    if (file.chars().empty()) fail_data(name, " is empty: expected text");
    // Read once from start to end: pages behind the reader may go.
    madvise(const_cast<std::byte*>(file.bytes().data()), file.bytes().size(), MADV_SEQUENTIAL);
    if (path.extension() == ".jsonl")
      for_each_json_line(file.chars(), name, visit);
    else
      visit(file.chars(), name);
  }
}

size_t safe_break(std::string_view text, size_t wanted) {
  if (text.size() <= wanted) return text.size();
  for (size_t offset = wanted; offset > 0; --offset)
    if (may_break_at(text, offset)) return offset;
  for (size_t offset = wanted + 1; offset < text.size(); ++offset)
    if (may_break_at(text, offset)) return offset;
  return text.size();
}

}  // namespace hearth
