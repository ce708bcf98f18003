// `hearth eval`: how well a checkpoint predicts a text.
#include <cmath>
#include <cstdio>
#include <numbers>

#include "base/text.h"
#include "cli/checkpoint_source.h"
#include "cli/commands.h"
#include "cli/literal.h"
#include "cli/options.h"
#include "data/dataset.h"
#include "data/shards.h"
#include "train/generate.h"

namespace hearth {
namespace {

CommandSpec spec() {
  CommandSpec spec{
      .name = "eval",
      .about =
          "Mean loss of a checkpoint, its perplexity, and bits per byte of text, which compare "
          "across tokenizers.",
      .positional = "CHECKPOINT",
      .options = {
          {"data", "FILE", "", "text or token shard; without it, the validation data of the run"},
          {"tokens", "N", "0", "tokens at the start of the data; 0 = all of it"},
      }};
  for (const Option& option : device_options())
    spec.options.push_back(option);
  return spec;
}

Dataset open_file(const std::string& file, const OpenedModel& opened) {
  const ModelConfig& model = opened.config.model;
  std::vector<std::unique_ptr<TokenShard>> shards;
  if (is_token_file(file)) {
    shards.push_back(open_token_file(file, model.vocab));
  } else {
    if (!opened.model.tokenizer)
      fail_data(opened.path.string(), " has no tokenizer, so it cannot read the text ", file,
                "; give a token shard");
    const std::string content = read_file(file);
    if (content.empty()) fail_data(file, " is empty: expected text or tokens");
    try {
      shards.push_back(memory_shard(opened.model.tokenizer->encode(content), file));
    } catch (const Error& error) {
      fail_data(file, ": ", error.what());
    }
  }
  return Dataset(std::move(shards), model.context);
}

// The validation data that the run itself used; it must still mean what it meant.
Dataset open_validation(const OpenedModel& opened) {
  Corpus corpus = open_corpus(opened.config.data, opened.config.model.context, opened.config.model.vocab);
  const Tokenizer* ours = opened.model.tokenizer.get();
  if (ours && corpus.tokenizer && ours->fingerprint() != corpus.tokenizer->fingerprint())
    fail_data("the data now gives another tokenizer (", corpus.tokenizer->kind(), ", ",
              corpus.tokenizer->vocab(), " ids) than the one in ", opened.path.string(), " (", ours->kind(),
              ", ", ours->vocab(), " ids): data.train has changed; name a file with --data");
  return std::move(corpus.val);
}

// Bytes of text behind the targets of the first `samples` samples.
int64_t text_bytes(const Dataset& dataset, int64_t samples, const Tokenizer& tokenizer) {
  std::vector<int64_t> lengths;
  for (int32_t id = 0; id < tokenizer.vocab(); ++id) {
    const bool is_text = tokenizer.end_of_text() != id;
    lengths.push_back(is_text ? static_cast<int64_t>(tokenizer.decode(id).size()) : 0);
  }
  std::vector<int32_t> inputs(static_cast<size_t>(dataset.context()));
  std::vector<int32_t> targets(inputs.size());
  int64_t bytes = 0;
  for (int64_t sample = 0; sample < samples; ++sample) {
    dataset.read_sample(sample, inputs, targets);
    for (const int32_t id : targets)
      if (id >= 0 && id < tokenizer.vocab()) bytes += lengths[static_cast<size_t>(id)];
  }
  return bytes;
}

std::string four_digits(double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.4f", value);
  return buffer;
}

void print(const OpenedModel& opened, const Dataset& dataset, const Evaluation& result) {
  const double perplexity = std::exp(result.loss);
  std::string people = text("step ", opened.step, "  val_loss ", four_digits(result.loss), "  perplexity ",
                            four_digits(perplexity));
  std::string exact =
      text("val_loss=", number_literal(result.loss), " perplexity=", number_literal(perplexity));
  if (opened.model.tokenizer) {
    const int64_t bytes = text_bytes(dataset, result.tokens / dataset.context(), *opened.model.tokenizer);
    const double bits =
        result.loss / std::numbers::ln2 * static_cast<double>(result.tokens) / static_cast<double>(bytes);
    if (bytes > 0) {
      people += text("  bits per byte ", four_digits(bits));
      exact += text(" bits_per_byte=", number_literal(bits));
    }
  }
  people += text("  (", with_commas(result.tokens), " tokens of ", dataset.description(), ")");
  exact += text(" tokens=", result.tokens);
  std::printf("%s\n%s\n", people.c_str(), exact.c_str());
}

}  // namespace

ExitCode run_eval(const CommandLine& line) {
  const Arguments arguments(spec(), line.arguments);
  if (arguments.help()) {
    std::fputs(help_text(spec()).c_str(), stdout);
    return ExitCode::done;
  }
  const int64_t tokens = arguments.whole("tokens", 0, INT64_MAX);
  const OpenedModel opened = open_model(arguments.positional()[0], arguments);
  const Dataset dataset =
      arguments.given("data") ? open_file(arguments.text("data"), opened) : open_validation(opened);
  const TrainConfig& train = opened.config.train;
  const int64_t micro_batch = train.micro_batch ? train.micro_batch : train.batch;
  print(opened, dataset, evaluate(opened.model, *opened.device, dataset, tokens, micro_batch));
  return ExitCode::done;
}

}  // namespace hearth
