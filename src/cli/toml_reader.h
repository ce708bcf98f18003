// TOML text to a flat list of assignments; the only user of toml++ (its header is slow to compile).
//
// The reader knows nothing of the schema: it reports what stands where, and schema.h decides what it means.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace hearth {

// A value of a type that no key has; `what` is "an array", "a date", ...
struct ForeignValue {
  std::string what;
};
// A table header or inline table.
struct TableValue {};

using TomlValue = std::variant<bool, int64_t, double, std::string, TableValue, ForeignValue>;

// One `key = value`, wherever it came from.
struct Assignment {
  std::string key;  // "train.batch"; parts that are not bare keys keep their quotes
  TomlValue value;
  std::string where;  // "configs/tiny.toml:12" or "--train.batch=x"; the start of every message about it
};

// All assignments and tables of a TOML document, in the order of the text.  Syntax errors are an Error(usage)
// that begins with "NAME:LINE: ".
std::vector<Assignment> read_toml(std::string_view document, const std::string& name);

// One literal: the part of a TOML document behind `key =`.  Error(usage) beginning with `where`.
TomlValue read_toml_literal(std::string_view literal, const std::string& where);

}  // namespace hearth
