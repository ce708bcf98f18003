// `hearth generate`: text from a checkpoint, as it is drawn.
#include "train/generate.h"

#include <cstdio>

#include "base/files.h"
#include "base/text.h"
#include "cli/checkpoint_source.h"
#include "cli/commands.h"
#include "cli/literal.h"
#include "cli/options.h"
#include "data/utf8.h"
#include "train/stop.h"

namespace hearth {
namespace {

CommandSpec spec() {
  const SamplingConfig defaults;
  CommandSpec spec{.name = "generate",
                   .about =
                       "Continues a prompt with a trained GPT.  CHECKPOINT is a checkpoint folder, or a run "
                       "directory: then its newest checkpoint.",
                   .positional = "CHECKPOINT",
                   .options = {
                       {"prompt", "TEXT", "", "text to continue; without it, the beginning of a document"},
                       {"tokens", "N", text(defaults.tokens), "tokens to draw"},
                       {"temperature", "X", number_literal(defaults.temperature),
                        "below 1: likelier tokens; 0: always the likeliest"},
                       {"top-k", "K", text(defaults.top_k), "draw among the K likeliest; 0 = all"},
                       {"top-p", "P", number_literal(defaults.top_p),
                        "draw among the fewest tokens that have probability P together"},
                       {"seed", "N", text(defaults.seed), "the same seed gives the same text"},
                   }};
  for (const Option& option : device_options())
    spec.options.push_back(option);
  return spec;
}

SamplingConfig sampling_of(const Arguments& arguments) {
  SamplingConfig sampling;
  sampling.tokens = arguments.whole("tokens", 0, 1'000'000'000);
  sampling.temperature = arguments.number("temperature", 0, 1000);
  sampling.top_k = arguments.whole("top-k", 0, 1 << 24);
  sampling.top_p = arguments.number("top-p", 0, 1, true);
  sampling.seed = static_cast<uint64_t>(arguments.whole("seed", 0, INT64_MAX));
  return sampling;
}

// Prints at once, and remembers whether the last line is finished.
class Console {
 public:
  void print(std::string_view piece) {
    if (piece.empty()) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
    line_open_ = piece.back() != '\n';
  }
  void finish() {
    if (line_open_) print("\n");
  }

 private:
  bool line_open_ = false;
};

// Before anything is printed: a prompt that the tokenizer cannot express is refused.
void require_expressible(const LoadedModel& model, const std::string& prompt) {
  if (!model.tokenizer)
    fail_data(
        "the checkpoint has no tokenizer, so text cannot be generated; train on data with a tokenizer.json");
  try {
    model.tokenizer->encode(prompt);
  } catch (const Error& error) {
    fail_usage("--prompt: ", error.what());
  }
}

}  // namespace

ExitCode run_generate(const CommandLine& line) {
  const Arguments arguments(spec(), line.arguments);
  if (arguments.help()) {
    std::fputs(help_text(spec()).c_str(), stdout);
    return ExitCode::done;
  }
  const SamplingConfig sampling = sampling_of(arguments);
  const std::string& prompt = arguments.text("prompt");
  if (invalid_utf8_offset(prompt)) fail_usage("--prompt ", quoted(prompt), " is not UTF-8");
  install_stop_handlers();
  const OpenedModel opened = open_model(arguments.positional()[0], arguments);
  require_expressible(opened.model, prompt);
  Console console;
  if (!stop_signal()) console.print(prompt);
  generate(
      opened.model, *opened.device, prompt, sampling, [&](std::string_view piece) { console.print(piece); },
      [] { return stop_signal() != 0 || std::ferror(stdout) != 0; });
  console.finish();
  return stop_signal() ? exit_code_for(stop_signal()) : ExitCode::done;
}

}  // namespace hearth
