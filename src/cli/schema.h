// The configuration schema: one table that gives every key its type, default, range and help text.
//
// Parsing a file, `--section.key=value` overrides, --help, --print-config, the configuration stored in
// checkpoints and configs/reference.toml all come from this table.  A key's default is the default of the
// struct field it points to (train/config.h, model/config.h, ...).
//
// Rules: `model.preset` is applied first, the other keys of [model] override it wherever they stand; a later
// assignment wins over an earlier one; every value is checked by itself here, and together with the others by
// validate() in config_check.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "cli/toml_reader.h"
#include "train/config.h"

namespace hearth {

// What the keys fill: the run's configuration, and the preset that it started from ("" = none).
struct Settings {
  std::string preset;
  RunConfig run;
};

// Where a key's value lives.  An enum's values are the key's choices, in the same order.
using Field = std::variant<int64_t*, uint64_t*, int*, double*, bool*, std::string*, Precision*, Recompute*,
                           LrSchedule*>;

// Allowed values.
struct Anything {};
struct Whole {
  int64_t low, high;
};
struct Real {
  double low, high;
  bool without_low = false;  // the bound itself is not allowed
  bool without_high = false;
};
struct Choices {
  std::vector<std::string> names;
};
using Limits = std::variant<Anything, Whole, Real, Choices>;

struct Key {
  std::string name;  // "train.batch"
  Field (*field)(Settings&);
  Limits limits;
  std::string help;

  std::string section() const { return name.substr(0, name.find('.')); }
  std::string leaf() const { return name.substr(name.find('.') + 1); }
};

// The table, grouped by section in the order of DESIGN and of reference.toml.
const std::vector<Key>& schema();
// Section names in that order, with one line of help each.
struct Section {
  std::string name;
  std::string help;
};
const std::vector<Section>& schema_sections();
// By name, or null.
const Key* find_key(std::string_view name);

// The key that was probably meant: by its whole name, else by its last part; "" when none is close.
std::string nearest_key(const std::string& name);

// "a whole number from 1 to 100", "true or false", "one of \"cpu\", \"cuda\"".
std::string allowed_values(const Key& key);
// The key's value in `settings` as a TOML literal.
std::string literal_of(const Key& key, const Settings& settings);
// The key's default as a TOML literal.
std::string default_literal(const Key& key);

// Applies assignments: the preset first, then all in order.  Error(usage) for an unknown key or section (with
// the nearest name), a wrong type, or a value out of range.
Settings apply(const std::vector<Assignment>& assignments);

}  // namespace hearth
