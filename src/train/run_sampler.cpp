#include "train/run_sampler.h"

#include "parallel/split_decoder.h"
#include "train/generate.h"

namespace hearth {

RunSampler::RunSampler(const RunConfig& config, const Tokenizer& tokenizer, Device& device,
                       StepRunner& runner, const ProcessGroups& groups)
    : config_(config),
      tokenizer_(tokenizer),
      runner_(runner),
      together_(groups.tensor->size() > 1 || groups.pipeline->size() > 1) {
  if (together_)
    predictor_ = std::make_unique<SplitDecoder>(config.model, config.train.precision, device,
                                                runner.pipeline(), groups);
  else if (groups.grid.rank() == 0)
    predictor_ = std::make_unique<Decoder>(config.model, config.train.precision, device, runner.parameters());
}

RunSampler::Sample RunSampler::draw(const std::function<StopWish()>& wish) {
  if (!predictor_) return {};
  SamplingConfig sampling;
  sampling.tokens = config_.sample.tokens;
  sampling.seed = config_.train.seed;
  Sample sample{config_.sample.prompt, StopWish::none};
  generate(
      *predictor_, tokenizer_, config_.sample.prompt, sampling,
      [&](std::string_view piece) { sample.text += piece; },
      [&] {
        if (!together_) return wish() != StopWish::none;
        sample.stop = runner_.agree(wish());
        return sample.stop != StopWish::none;
      });
  return sample;
}

}  // namespace hearth
