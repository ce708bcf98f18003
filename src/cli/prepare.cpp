// `hearth prepare`: text files to token shards.
#include "data/prepare.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/literal.h"
#include "cli/options.h"

namespace hearth {
namespace {

CommandSpec spec() {
  const PrepareOptions defaults;
  return {.name = "prepare",
          .about =
              "Turns text files, or .jsonl files with a \"text\" in each line, into token shards that "
              "data.train and data.val can name.",
          .positional = "INPUT...",
          .options = {
              {"tokenizer", "KIND", "", "byte, char or gpt2; must be given"},
              {"out", "DIR", "", "folder to make; must be given"},
              {"val-fraction", "F", number_literal(defaults.val_fraction),
               "last part of the characters that becomes validation shards; 0 = none"},
              {"shard-tokens", "N", text(defaults.shard_tokens), "largest number of tokens in a shard"},
              {"merges", "FILE", "", text("GPT-2's merges, for gpt2; without it ", default_gpt2_merges)},
          }};
}

PrepareOptions options_of(const Arguments& arguments) {
  PrepareOptions options;
  for (const char* required : {"tokenizer", "out"})
    if (arguments.text(required).empty())
      fail_usage("hearth prepare needs --", required, "; see hearth prepare --help");
  options.tokenizer = arguments.text("tokenizer");
  const std::vector<std::string> kinds = {"byte", "char", "gpt2"};
  if (std::find(kinds.begin(), kinds.end(), options.tokenizer) == kinds.end()) {
    const std::string close = nearest(options.tokenizer, kinds);
    fail_usage("--tokenizer ", quoted(options.tokenizer), ", expected byte, char or gpt2",
               close.empty() ? "" : text("; did you mean ", close, "?"));
  }
  options.out = arguments.text("out");
  options.gpt2_merges = arguments.text("merges");
  options.val_fraction = arguments.number("val-fraction", 0, 1);
  if (options.val_fraction == 1)
    fail_usage("--val-fraction 1 leaves nothing to train on; expected less than 1");
  options.shard_tokens = arguments.whole("shard-tokens", 1, (int64_t{1} << 31) - 1);
  for (const std::string& input : arguments.positional())
    options.inputs.emplace_back(input);
  return options;
}

}  // namespace

ExitCode run_prepare(const CommandLine& line) {
  const Arguments arguments(spec(), line.arguments);
  if (arguments.help()) {
    std::fputs(help_text(spec()).c_str(), stdout);
    return ExitCode::done;
  }
  const PrepareOptions options = options_of(arguments);
  const PrepareResult result = prepare(options);
  std::printf("%s documents, %s characters; %s tokenizer with %s ids\n",
              with_commas(result.documents).c_str(), with_commas(result.characters).c_str(),
              options.tokenizer.c_str(), with_commas(result.vocab).c_str());
  std::printf("%s training tokens, %s validation tokens\n", with_commas(result.train_tokens).c_str(),
              with_commas(result.val_tokens).c_str());
  for (const fs::path& file : result.files)
    std::printf("  %s  %s\n", file.c_str(), human_bytes(fs::file_size(file)).c_str());
  const std::string out = options.out.string();
  std::printf("use them with  --data.train='%s/train_*.bin'", out.c_str());
  if (result.val_tokens > 0) std::printf(" --data.val='%s/val_*.bin'", out.c_str());
  std::printf("\n");
  return ExitCode::done;
}

}  // namespace hearth
