#include "cli/toml_reader.h"

#include <algorithm>
#include <cctype>

namespace hearth {
namespace {

// Thrown where toml++ would abort: its parser asserts that some syntax cannot happen that can ("[[" at the
// end of a line, for one).
struct ParserGaveUp {};
[[noreturn]] void give_up() {
  throw ParserGaveUp();
}

}  // namespace
}  // namespace hearth

#undef NDEBUG  // would turn the library's assertions into assumptions
#define TOML_ASSERT(expression) ((expression) ? static_cast<void>(0) : ::hearth::give_up())
#include <toml++/toml.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/toml_text.h"
#include "data/utf8.h"

namespace hearth {
namespace {

struct Located {
  uint32_t line = 0;
  uint32_t column = 0;
  std::string key;
  TomlValue value;
};

// A key as it would have to be written: bare where TOML allows it.
std::string written_key(std::string_view key) {
  const auto bare = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; };
  if (!key.empty() && std::all_of(key.begin(), key.end(), bare)) return std::string(key);
  return quoted(key);
}

std::string foreign_name(toml::node_type type) {
  switch (type) {
    case toml::node_type::array:
      return "an array";
    case toml::node_type::date:
      return "a date";
    case toml::node_type::time:
      return "a time";
    case toml::node_type::date_time:
      return "a date and time";
    default:
      return "a value of another type";
  }
}

TomlValue value_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::boolean:
      return node.as_boolean()->get();
    case toml::node_type::integer:
      return node.as_integer()->get();
    case toml::node_type::floating_point:
      return node.as_floating_point()->get();
    case toml::node_type::string:
      return node.as_string()->get();
    case toml::node_type::table:
      return TableValue{};
    default:
      return ForeignValue{foreign_name(node.type())};
  }
}

void flatten(const toml::table& table, const std::string& prefix, std::vector<Located>& out) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + written_key(key.str());
    const toml::source_position at = key.source().begin;
    out.push_back({at.line, at.column, name, value_of(node)});
    if (const toml::table* inner = node.as_table()) flatten(*inner, name + ".", out);
  }
}

// With their line ends: the parser may fail only when it sees one.
std::string_view first_lines(std::string_view document, size_t count) {
  size_t end = 0;
  for (; count > 0; --count) {
    const size_t line_end = document.find('\n', end);
    if (line_end == std::string_view::npos) return document;
    end = line_end + 1;
  }
  return document.substr(0, end);
}

bool gives_up(std::string_view document) {
  try {
    static_cast<void>(toml::parse(document));
  } catch (const ParserGaveUp&) {
    return true;
  } catch (const toml::parse_error&) {
  }
  return false;
}

// The line at which the parser gives up: it reads from the front, so every longer beginning fails there too.
size_t line_of_giving_up(std::string_view document) {
  size_t low = 1;
  size_t high = 1 + static_cast<size_t>(std::count(document.begin(), document.end(), '\n'));
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (gives_up(first_lines(document, middle)))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace

std::vector<Assignment> read_toml(std::string_view document, const std::string& name) {
  if (const auto offset = misplaced_non_ascii(document)) {
    const auto line = 1 + std::count(document.begin(), document.begin() + static_cast<long>(*offset), '\n');
    const int length = std::max(1, utf8_at(document, *offset).length);
    fail_usage(name, ":", line, ": not valid TOML: ", quoted(document.substr(*offset, length)),
               " may stand only in a string or a comment");
  }
  toml::table root;
  try {
    root = toml::parse(document);
  } catch (const toml::parse_error& error) {
    fail_usage(name, ":", error.source().begin.line, ": not valid TOML: ", error.description());
  } catch (const ParserGaveUp&) {
    fail_usage(name, ":", line_of_giving_up(document), ": not valid TOML");
  }
  std::vector<Located> found;
  flatten(root, "", found);
  std::stable_sort(found.begin(), found.end(), [](const Located& a, const Located& b) {
    return a.line != b.line ? a.line < b.line : a.column < b.column;
  });
  std::vector<Assignment> assignments;
  for (Located& item : found)
    assignments.push_back({std::move(item.key), std::move(item.value), text(name, ":", item.line)});
  return assignments;
}

TomlValue read_toml_literal(std::string_view literal, const std::string& where) {
  const std::string document = "value = " + std::string(literal);
  if (misplaced_non_ascii(document)) fail_usage(where, ": ", quoted(literal), " is not a TOML value");
  toml::table root;
  try {
    root = toml::parse(document);
  } catch (const toml::parse_error&) {
  } catch (const ParserGaveUp&) {
  }
  const toml::node* node = root.get("value");
  if (node == nullptr || root.size() != 1) fail_usage(where, ": ", quoted(literal), " is not a TOML value");
  return value_of(*node);
}

}  // namespace hearth
