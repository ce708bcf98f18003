// `hearth plan`: memory, traffic, schedule and time of a run in any layout, without any device.
#include "train/plan.h"

#include <cstdio>

#include "base/files.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_check.h"
#include "cli/config_source.h"
#include "cli/options.h"
#include "comm/rendezvous.h"
#include "data/dataset.h"
#include "model/sharding.h"

namespace hearth {
namespace {

CommandSpec spec() {
  return {.name = "plan",
          .about =
              "Prints what `hearth train` with the same arguments will need: memory of each rank, bytes "
              "sent, the "
              "pipeline's schedule, and the time that the hardware's numbers allow.  Needs no device and no "
              "data; "
              "with the data, also the number of epochs.  Takes every --section.key=value that train takes.",
          .positional = "CONFIG.toml",
          .options = {
              {"ranks", "N", "", "processes of the run; else WORLD_SIZE, else what [parallel] asks for"},
              {"peak-tflops", "X", "989.5", "dense TFLOP/s of one rank's device (default: H100 SXM in bf16)"},
              {"memory-gbps", "Y", "3350", "GB/s of its memory"},
              {"link-gbps", "Z", "450", "GB/s that it can send to other ranks"},
          }};
}

struct Request {
  std::vector<Assignment> overrides;
  std::vector<std::string> others;  // flags of plan, and the file
};

Request split(const std::vector<std::string>& arguments) {
  Request request;
  for (size_t at = 0; at < arguments.size();) {
    if (is_override(arguments[at]))
      request.overrides.push_back(read_override(arguments, at));
    else
      request.others.push_back(arguments[at++]);
  }
  return request;
}

int64_t whole_variable(const std::string& name, const std::string& value) {
  size_t used = 0;
  int64_t number = 0;
  try {
    number = std::stoll(value, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != value.size() || number < 1)
    fail_usage("the environment has ", name, " = ", quoted(value), ", expected a whole number from 1");
  return number;
}

int64_t world_of(const Arguments& arguments, const ParallelConfig& parallel) {
  if (arguments.given("ranks")) return arguments.whole("ranks", 1, 1'000'000);
  if (const auto size = environment("WORLD_SIZE")) return whole_variable("WORLD_SIZE", *size);
  return parallel.tensor * parallel.pipeline * std::max<int64_t>(1, parallel.data);
}

// The samples of an epoch, if the data is here.  Sets the vocabulary where only the data knows it.
std::optional<int64_t> look_at_data(RunConfig& config) {
  std::string why = "it has no tokenizer";
  std::optional<int64_t> samples;
  try {
    const Corpus corpus = open_corpus(config.data, config.model.context, config.model.vocab);
    samples = corpus.train.samples();
    if (config.model.vocab == 0) config.model.vocab = corpus.vocab;
  } catch (const Error& error) {
    why = error.what();
  }
  if (config.model.vocab == 0)
    fail_usage("model.vocab is 0 and cannot be taken from the data (", why,
               "); give it, as in --model.vocab=50257");
  if (!samples) std::printf("note       without the data: %s\n", why.c_str());
  return samples;
}

}  // namespace

ExitCode run_plan(const CommandLine& line) {
  const Request request = split(line.arguments);
  const Arguments arguments(spec(), request.others);
  if (arguments.help()) {
    std::fputs((help_text(spec()) + "\nKeys, with their defaults:\n" + key_help()).c_str(), stdout);
    return ExitCode::done;
  }
  const std::string& file = arguments.positional().front();
  std::vector<Assignment> assignments = read_config_file(file);
  assignments.insert(assignments.end(), request.overrides.begin(), request.overrides.end());
  RunConfig config = apply(assignments).run;
  validate(config);
  const std::optional<int64_t> samples = look_at_data(config);
  validate(config.model);
  validate_tensor_parallel(config.model, config.parallel.tensor);

  Hardware hardware;
  hardware.peak_flops = arguments.number("peak-tflops", 0, 1e9, true) * 1e12;
  hardware.memory_bandwidth = arguments.number("memory-gbps", 0, 1e9, true) * 1e9;
  hardware.link_bandwidth = arguments.number("link-gbps", 0, 1e9, true) * 1e9;
  const RunPlan plan = plan_run(config, world_of(arguments, config.parallel), hardware);
  std::fputs(text_of(plan, hardware, samples).c_str(), stdout);
  return ExitCode::done;
}

}  // namespace hearth
