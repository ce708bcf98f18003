#include "cli/options.h"

// Without regular expressions, which neither match line breaks nor bear long values.
#define CXXOPTS_NO_REGEX
// A path may contain a comma: lists are made of separate arguments only.
#define CXXOPTS_VECTOR_DELIMITER '\0'
#include <cxxopts.hpp>

#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "cli/literal.h"

namespace hearth {
namespace {

using Positional = std::vector<std::string>;

cxxopts::Options cxxopts_of(const CommandSpec& spec) {
  cxxopts::Options options("hearth " + spec.name, spec.about + "\n");
  options.custom_help("[OPTIONS]");
  options.positional_help(spec.positional);
  options.set_width(100);
  auto add = options.add_options();
  for (const Option& option : spec.options) {
    // The default is shown, but applied by Arguments.
    const std::string shown = option.initial.empty() ? "" : " (default " + option.initial + ")";
    add(option.name, option.help + shown, cxxopts::value<std::string>(), option.value);
  }
  add("h,help", "this text");
  options.add_options("positional")("positional", "", cxxopts::value<Positional>());
  options.parse_positional({"positional"});
  options.allow_unrecognised_options();  // they are refused below, with the nearest name
  return options;
}

std::string flag_of(const std::string& option) {
  return (option.size() == 1 ? "-" : "--") + option;
}

[[noreturn]] void refuse_unknown(const CommandSpec& spec, const std::string& argument) {
  std::vector<std::string> names = {"--help"};
  for (const Option& option : spec.options)
    names.push_back(flag_of(option.name));
  const std::string close = nearest(argument.substr(0, argument.find('=')), names);
  fail_usage(
      "hearth ", spec.name, ": unknown option ", quoted(argument),
      close.empty() ? text("; see hearth ", spec.name, " --help") : text("; did you mean ", close, "?"));
}

}  // namespace

Arguments::Arguments(const CommandSpec& spec, const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"hearth"};
  for (const std::string& argument : arguments)
    argv.push_back(argument.c_str());
  cxxopts::Options options = cxxopts_of(spec);
  try {
    const cxxopts::ParseResult result = options.parse(static_cast<int>(argv.size()), argv.data());
    help_ = result.count("help") > 0;
    if (!result.unmatched().empty() && !help_) refuse_unknown(spec, result.unmatched().front());
    if (result.count("positional")) positional_ = result["positional"].as<Positional>();
    for (const Option& option : spec.options) {
      initial_[option.name] = option.initial;
      if (result.count(option.name)) given_[option.name] = result[option.name].as<std::string>();
    }
  } catch (const cxxopts::exceptions::exception& error) {
    fail_usage("hearth ", spec.name, ": ", error.what(), "; see hearth ", spec.name, " --help");
  }
  if (!help_) require_positional(spec);
}

void Arguments::require_positional(const CommandSpec& spec) {
  if (positional_.empty())
    fail_usage("hearth ", spec.name, " needs ", spec.positional, "; see hearth ", spec.name, " --help");
  if (positional_.size() > 1 && !spec.takes_many())
    fail_usage("hearth ", spec.name, " takes one ", spec.positional,
               ", but a second argument was given: ", quoted(positional_[1]));
  for (const std::string& path : positional_)
    if (path.empty()) fail_usage("hearth ", spec.name, ": ", spec.positional, " is an empty string");
}

const std::string& Arguments::text(const std::string& option) const {
  const auto found = given_.find(option);
  return found != given_.end() ? found->second : initial_.at(option);
}

int64_t Arguments::whole(const std::string& option, int64_t low, int64_t high) const {
  const std::string& value = text(option);
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < low || number > high)
    fail_usage(flag_of(option), " ", quoted(value), ", expected a whole number from ", low, " to ", high);
  return number;
}

double Arguments::number(const std::string& option, double low, double high, bool without_low) const {
  const std::string& value = text(option);
  double number = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, number);
  const bool above = without_low ? number > low : number >= low;  // false for NaN
  if (parsed.ec != std::errc() || parsed.ptr != end || !above || !(number <= high))
    fail_usage(flag_of(option), " ", quoted(value), ", expected a number ", without_low ? "above " : "from ",
               low, " to ", high);
  return number;
}

std::string help_text(const CommandSpec& spec) {
  return cxxopts_of(spec).help({""});
}

}  // namespace hearth
