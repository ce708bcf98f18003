// Flags of the subcommands other than train: parsing and --help from one table.  The only user of cxxopts
// (its header is slow to compile).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hearth {

struct Option {
  std::string name;     // "tokens", used as --tokens
  std::string value;    // what its value is called in the help: "N"
  std::string initial;  // its default as text; "" = none
  std::string help;
};

struct CommandSpec {
  std::string name;        // "generate"
  std::string about;       // a few lines for --help
  std::string positional;  // "CHECKPOINT"; "INPUT..." takes one or more
  std::vector<Option> options;

  bool takes_many() const { return positional.ends_with("..."); }
};

// The parsed command line.  Every failure is an Error(usage) that names the flag and what it expects.
class Arguments {
 public:
  Arguments(const CommandSpec& spec, const std::vector<std::string>& arguments);

  bool help() const { return help_; }
  // At least one, and exactly one unless the command takes many.
  const std::vector<std::string>& positional() const { return positional_; }
  bool given(const std::string& option) const { return given_.contains(option); }

  // The value given, else the option's default.
  const std::string& text(const std::string& option) const;
  int64_t whole(const std::string& option, int64_t low, int64_t high) const;
  // low <= value <= high; `without_low` leaves the lower bound out.
  double number(const std::string& option, double low, double high, bool without_low = false) const;

 private:
  void require_positional(const CommandSpec& spec);

  bool help_ = false;
  std::vector<std::string> positional_;
  std::map<std::string, std::string> given_;
  std::map<std::string, std::string> initial_;
};

// What --help prints.
std::string help_text(const CommandSpec& spec);

}  // namespace hearth
