// Fuzzing: mutate small valid inputs and feed them to a parser.
//
// A parser may accept an input or throw hearth::Error; everything else is a finding: a crash, a sanitizer's
// report, a failed check(), any other exception, or more than a second.  Runs are deterministic in (parser,
// seed, number). To add a parser write seeds and a function, and add one row to the table in parsers.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace hearth::fuzz {

struct Parser {
  std::string name;
  std::vector<std::string> seeds;  // valid inputs, small
  // `scratch` is a folder for parsers that read files; they may overwrite what is there.
  std::function<void(std::string_view input, const fs::path& scratch)> parse;
};

std::vector<Parser> all_parsers();
// Those of checkpoints (checkpoint_fuzz.cpp), a part of all_parsers().
std::vector<Parser> checkpoint_parsers();
// Those of the configuration (config_fuzz.cpp), a part of all_parsers().
std::vector<Parser> config_parsers();

// A mutated copy of one of the seeds.
std::string mutate(const std::vector<std::string>& seeds, std::mt19937_64& random);

}  // namespace hearth::fuzz
