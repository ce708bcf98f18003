// Where a configuration comes from: a file, overrides on the command line, a checkpoint; and back to text.
#pragma once

#include <string>
#include <vector>

#include "cli/schema.h"

namespace hearth {

// --- reading ---

// The assignments of a configuration file.  Error(usage) when it cannot be read.
std::vector<Assignment> read_config_file(const std::string& path);

// An override starts with "--SECTION." or names a key: "--train.batch=12", or "--train.batch" "12" as two
// arguments.  Strings may be given bare or as a TOML string in double quotes.
bool is_override(const std::string& argument);
// Reads the override at arguments[at] and moves `at` behind it.
Assignment read_override(const std::vector<std::string>& arguments, size_t& at);

// The configuration stored in a checkpoint.  Error(data) beginning with `where`,
// for a key of a newer version too.
Settings settings_from(const ConfigValues& values, const std::string& where);

// --- writing ---

// Every effective value by key.
ConfigValues values_of(const Settings& settings);
// Every effective value as a TOML document, in the order of the schema.
std::string config_text(const Settings& settings);
// The same, with help, default and allowed values above each key: with default settings, this is
// configs/reference.toml.
std::string reference_text(const Settings& settings);
// Every key with its default, for --help.
std::string key_help();

}  // namespace hearth
