#include "cli/config_source.h"

#include "base/files.h"
#include "base/text.h"

namespace hearth {
namespace {

// A value behind `--key=`: TOML, except that strings need no quotes in the shell.
TomlValue override_value(const Key& key, const std::string& value, const std::string& where) {
  Settings any;
  const Field field = key.field(any);
  const bool is_string =
      std::holds_alternative<std::string*>(field) || std::holds_alternative<Choices>(key.limits);
  if (is_string) {
    const bool has_quotes = value.size() >= 2 && value.front() == '"' && value.back() == '"';
    if (!has_quotes) return value;
  }
  try {
    return read_toml_literal(value, where);
  } catch (const Error&) {
    fail_usage(where, ": ", key.name, " = ", quoted(value), ", expected ", allowed_values(key));
  }
}

// Breaks `words` into lines of at most `width` columns behind `indent`.
std::string wrapped(const std::string& words, const std::string& indent, size_t width) {
  std::string out;
  std::string line = indent;
  size_t at = 0;
  while (at < words.size()) {
    const size_t end = std::min(words.find(' ', at), words.size());
    const std::string word = words.substr(at, end - at);
    if (line.size() > indent.size() && line.size() + word.size() + 1 > width) {
      out += line + "\n";
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + word;
    at = end + 1;
  }
  return out + line + "\n";
}

std::string sentence(std::string help) {
  if (!help.empty() && help.front() >= 'a' && help.front() <= 'z' && !help.starts_with("bf16"))
    help.front() = static_cast<char>(help.front() - 'a' + 'A');
  return help;
}

const char reference_header[] =
    "# Every key of a Hearth configuration with its default: the reference.\n"
    "#\n"
    "# A configuration names only what differs from the defaults.  Any key can be overridden on the command\n"
    "# line: hearth train CONFIG.toml --train.batch=16.  Paths are relative to the current directory.\n"
    "# This file is the output of `hearth train --print-config`.\n";

}  // namespace

std::vector<Assignment> read_config_file(const std::string& path) {
  std::string document;
  try {
    document = read_file(path);
  } catch (const Error& error) {
    fail_usage(error.what());
  }
  if (document.find('\0') != std::string::npos)
    fail_usage(path, ": not a configuration: it holds binary data (found ", quoted(document, 8),
               "), expected TOML text such as configs/tiny.toml");
  return read_toml(document, path);
}

bool is_override(const std::string& argument) {
  if (!argument.starts_with("--")) return false;
  const std::string name = argument.substr(2, argument.find('=') - 2);
  return name.find('.') != std::string::npos;
}

Assignment read_override(const std::vector<std::string>& arguments, size_t& at) {
  const std::string& argument = arguments[at++];
  const size_t equals = argument.find('=');
  const bool joined = equals != std::string::npos;
  Assignment a;
  a.key = argument.substr(2, joined ? equals - 2 : std::string::npos);
  a.where = joined ? quoted(argument) : "--" + a.key;
  if (joined) a.where = a.where.substr(1, a.where.size() - 2);
  const Key* key = find_key(a.key);
  if (key == nullptr) return a;  // apply() refuses it by name
  std::string value;
  if (joined) {
    value = argument.substr(equals + 1);
  } else {
    if (at == arguments.size() || arguments[at].starts_with("--"))
      fail_usage("--", a.key, " needs a value: ", allowed_values(*key), ", as in --", a.key, "=",
                 default_literal(*key));
    value = arguments[at++];
  }
  a.value = override_value(*key, value, a.where);
  return a;
}

Settings settings_from(const ConfigValues& values, const std::string& where) {
  try {
    std::vector<Assignment> assignments;
    for (const auto& [key, literal] : values) {
      if (find_key(key) == nullptr)
        fail_data(where, ": its configuration has the key ", quoted(key),
                  ", which this version of hearth does not know; it was written by a newer one");
      assignments.push_back({key, read_toml_literal(literal, where), where});
    }
    return apply(assignments);
  } catch (const Error& error) {
    throw Error(ExitCode::data, error.what());
  }
}

ConfigValues values_of(const Settings& settings) {
  ConfigValues values;
  for (const Key& key : schema())
    values[key.name] = literal_of(key, settings);
  return values;
}

std::string config_text(const Settings& settings) {
  std::string out;
  std::string section;
  for (const Key& key : schema()) {
    if (key.section() != section) {
      out += (section.empty() ? "[" : "\n[") + key.section() + "]\n";
      section = key.section();
    }
    out += key.leaf() + " = " + literal_of(key, settings) + "\n";
  }
  return out;
}

std::string reference_text(const Settings& settings) {
  std::string out = reference_header;
  for (const Section& section : schema_sections()) {
    out += "\n[" + section.name + "]  # " + section.help + "\n";
    for (const Key& key : schema()) {
      if (key.section() != section.name) continue;
      out += wrapped(sentence(key.help) + ".", "# ", 110);
      out += wrapped("Default " + default_literal(key) + "; " + allowed_values(key) + ".", "# ", 110);
      out += key.leaf() + " = " + literal_of(key, settings) + "\n";
    }
  }
  return out;
}

std::string key_help() {
  std::string out;
  for (const Section& section : schema_sections()) {
    out += "\n[" + section.name + "]  " + section.help + "\n";
    for (const Key& key : schema()) {
      if (key.section() != section.name) continue;
      out += "  --" + key.name + "=" + default_literal(key) + "\n";
      out += wrapped(key.help + " (" + allowed_values(key) + ")", "        ", 100);
    }
  }
  return out;
}

}  // namespace hearth
