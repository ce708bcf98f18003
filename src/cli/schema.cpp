#include "cli/schema.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "cli/literal.h"
#include "data/utf8.h"

namespace hearth {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

// --- what was found, in words ---

std::string describe(const TomlValue& value) {
  return std::visit(Overloaded{
                        [](bool v) -> std::string { return v ? "true" : "false"; },
                        [](int64_t v) { return text(v); },
                        [](double v) { return number_literal(v); },
                        [](const std::string& v) { return quoted(v) + " (a string)"; },
                        [](TableValue) -> std::string { return "a table"; },
                        [](const ForeignValue& v) { return v.what; },
                    },
                    value);
}

[[noreturn]] void refuse(const Key& key, const Assignment& a, const std::string& found) {
  fail_usage(a.where, ": ", key.name, " = ", found, ", expected ", allowed_values(key));
}

// --- one value into one field ---

int64_t whole_number(const Key& key, const Assignment& a) {
  const auto* value = std::get_if<int64_t>(&a.value);
  if (value == nullptr) refuse(key, a, describe(a.value));
  const auto* range = std::get_if<Whole>(&key.limits);
  if (range && (*value < range->low || *value > range->high)) refuse(key, a, text(*value));
  return *value;
}

double real_number(const Key& key, const Assignment& a) {
  double value = 0;
  if (const auto* whole = std::get_if<int64_t>(&a.value))
    value = static_cast<double>(*whole);
  else if (const auto* real = std::get_if<double>(&a.value))
    value = *real;
  else
    refuse(key, a, describe(a.value));
  const Real& range = std::get<Real>(key.limits);
  const bool above = range.without_low ? value > range.low : value >= range.low;
  const bool below = range.without_high ? value < range.high : value <= range.high;
  if (!above || !below) refuse(key, a, number_literal(value));  // NaN too: both comparisons are false
  return value == 0 ? 0.0 : value;                              // -0.0 is 0.0
}

std::string string_value(const Key& key, const Assignment& a) {
  const auto* value = std::get_if<std::string>(&a.value);
  if (value == nullptr) refuse(key, a, describe(a.value));
  if (invalid_utf8_offset(*value))
    fail_usage(a.where, ": ", key.name, " = ", quoted(*value), " is not UTF-8");
  return *value;
}

// The place of the value among the key's choices.
size_t choice(const Key& key, const Assignment& a) {
  const std::string value = string_value(key, a);
  const std::vector<std::string>& names = std::get<Choices>(key.limits).names;
  const auto found = std::find(names.begin(), names.end(), value);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  const std::string close = nearest(value, names);
  fail_usage(a.where, ": ", key.name, " = ", quoted(value), ", expected ", allowed_values(key),
             close.empty() ? "" : text("; did you mean ", quoted(close), "?"));
}

void assign(const Key& key, const Assignment& a, Settings& settings) {
  std::visit(Overloaded{
                 [&](bool* field) {
                   const auto* value = std::get_if<bool>(&a.value);
                   if (value == nullptr) refuse(key, a, describe(a.value));
                   *field = *value;
                 },
                 [&](double* field) { *field = real_number(key, a); },
                 [&](std::string* field) {
                   if (const auto* choices = std::get_if<Choices>(&key.limits))
                     *field = choices->names[choice(key, a)];
                   else
                     *field = string_value(key, a);
                 },
                 [&]<class E>(E* field) {
                   if constexpr (std::is_enum_v<E>)
                     *field = static_cast<E>(choice(key, a));
                   else
                     *field = static_cast<E>(whole_number(key, a));
                 },
             },
             key.field(settings));
}

// --- names ---

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const Key& key : schema())
    names.push_back(key.name);
  return names;
}

bool is_section(std::string_view name) {
  for (const Section& section : schema_sections())
    if (section.name == name) return true;
  return false;
}

[[noreturn]] void refuse_name(const Assignment& a) {
  const bool table = std::holds_alternative<TableValue>(a.value);
  if (table && a.key.find('.') == std::string::npos) {
    std::vector<std::string> sections;
    for (const Section& section : schema_sections())
      sections.push_back(section.name);
    const std::string close = nearest(a.key, sections);
    fail_usage(a.where, ": unknown section [", a.key, "]",
               close.empty() ? "" : text("; did you mean [", close, "]?"));
  }
  const std::string close = nearest_key(a.key);
  const std::string hint =
      close.empty() ? "; `hearth train --help` lists all keys" : text("; did you mean ", close, "?");
  // The name is cut: it comes from a file that may be anything.
  const std::string shown = quoted(a.key);
  fail_usage(a.where, ": unknown key ", shown.substr(1, shown.size() - 2), hint);
}

void check_name(const Assignment& a) {
  if (const Key* key = find_key(a.key)) {
    if (std::holds_alternative<TableValue>(a.value)) refuse(*key, a, "a table");
    return;
  }
  if (!is_section(a.key)) refuse_name(a);
  if (!std::holds_alternative<TableValue>(a.value))
    fail_usage(a.where, ": ", a.key, " = ", describe(a.value), ", expected a section: [", a.key,
               "] with its keys on the lines below");
}

}  // namespace

const Key* find_key(std::string_view name) {
  for (const Key& key : schema())
    if (key.name == name) return &key;
  return nullptr;
}

std::string nearest_key(const std::string& name) {
  const std::string close = nearest(name, key_names());
  const std::string leaf = name.substr(name.rfind('.') + 1);
  for (const Key& key : schema())
    if (key.leaf() == leaf && close.empty()) return key.name;
  if (!close.empty()) return close;
  std::vector<std::string> leaves;
  for (const Key& key : schema())
    leaves.push_back(key.leaf());
  const std::string close_leaf = nearest(leaf, leaves);
  for (const Key& key : schema())
    if (key.leaf() == close_leaf) return key.name;
  return "";
}

std::string allowed_values(const Key& key) {
  if (const auto* range = std::get_if<Whole>(&key.limits)) {
    if (range->high == std::numeric_limits<int64_t>::max())
      return text("a whole number, at least ", range->low);
    return text("a whole number from ", range->low, " to ", range->high);
  }
  if (const auto* range = std::get_if<Real>(&key.limits)) {
    // Bounds are printed as people write them: 1e9, 0, 1.
    return text("a number ", range->without_low ? "above " : "from ", range->low,
                range->without_high ? " up to, not including, " : " to ", range->high);
  }
  if (const auto* choices = std::get_if<Choices>(&key.limits)) {
    std::string list;
    for (const std::string& name : choices->names)
      list += (list.empty() ? "" : ", ") + string_literal(name);
    return "one of " + list;
  }
  Settings any;
  return std::holds_alternative<bool*>(key.field(any)) ? "true or false" : "a string in quotes";
}

std::string literal_of(const Key& key, const Settings& settings) {
  // Fields are only read here; the table has one accessor for both directions.
  const Field field = key.field(const_cast<Settings&>(settings));
  return std::visit(
      Overloaded{
          [](const bool* value) -> std::string { return *value ? "true" : "false"; },
          [](const double* value) { return number_literal(*value); },
          [](const std::string* value) { return string_literal(*value); },
          [&]<class E>(const E* value) {
            if constexpr (std::is_enum_v<E>)
              return string_literal(std::get<Choices>(key.limits).names[static_cast<size_t>(*value)]);
            else
              return text(*value);
          },
      },
      field);
}

std::string default_literal(const Key& key) {
  return literal_of(key, Settings{});
}

Settings apply(const std::vector<Assignment>& assignments) {
  Settings settings;
  for (const Assignment& a : assignments) {
    check_name(a);
    if (const Key* key = find_key(a.key); key && key->name == "model.preset") assign(*key, a, settings);
  }
  if (const auto preset = model_preset(settings.preset)) settings.run.model = *preset;
  for (const Assignment& a : assignments)
    if (const Key* key = find_key(a.key)) assign(*key, a, settings);
  return settings;
}

}  // namespace hearth
