// Fuzzing the configuration: TOML files, overrides, and the literals stored in checkpoints.
#include "base/error.h"
#include "cli/config_check.h"
#include "cli/config_source.h"
#include "fuzz.h"

namespace hearth::fuzz {
namespace {

// Settings that were accepted must print as a configuration that reads back the same.
void use(const Settings& settings) {
  const std::string printed = config_text(settings);
  const Settings again = apply(read_toml(printed, "printed"));
  check(config_text(again) == printed, "a configuration changed in its own TOML:\n", printed);
  check(values_of(settings_from(values_of(settings), "stored")) == values_of(settings),
        "stored values changed");
  validate(settings.run);
}

void parse_file(std::string_view input, const fs::path&) {
  use(apply(read_toml(input, "fuzz.toml")));
}

// The input is one or two arguments, cut at the first line end.
void parse_override(std::string_view input, const fs::path&) {
  const size_t cut = input.find('\n');
  std::vector<std::string> arguments = {std::string(input.substr(0, cut))};
  if (cut != std::string_view::npos) arguments.emplace_back(input.substr(cut + 1));
  if (!is_override(arguments[0])) return;
  size_t at = 0;
  use(apply({read_override(arguments, at)}));
}

void parse_literal(std::string_view input, const fs::path&) {
  for (const char* key : {"train.batch", "optimizer.lr", "sample.prompt", "model.bias", "model.preset"}) {
    try {
      use(settings_from({{key, std::string(input)}}, "fuzz"));
    } catch (const Error&) {
      // The other keys are tried too.
    }
  }
}

std::vector<std::string> file_seeds() {
  return {
      "[model]\npreset = \"tiny\"\nlayers = 3\n[data]\ntrain = 'a.txt'\n[train]\nbatch = 8\nmicro_batch = "
      "4\n",
      "model = {layers = 2, heads = 2, channels = 0x40}\noptimizer.lr = 6e-4\nsample.prompt = "
      "\"\"\"a\\u00e9\n\"\"\"\n",
      "[[train]]\nx = [1, 2.5, [true, {a = 1979-05-27T07:32:00Z}]] # c\n\"a.b\".'c' = +inf\n"};
}

}  // namespace

std::vector<Parser> config_parsers() {
  return {
      {"config_toml", file_seeds(), parse_file},
      {"config_override",
       {"--train.batch=12", "--optimizer.lr\n1e-3", "--sample.prompt=\"a\\n\\u00e9\"", "--model.preset=tiny"},
       parse_override},
      {"config_literal", {"12", "0.0006", "\"a\\n\\\"\\u00e9\"", "true", "{a = [1]}"}, parse_literal},
  };
}

}  // namespace hearth::fuzz
