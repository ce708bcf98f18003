// Text drawn from the model during its training ([sample] in the config), in any layout.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "model/predictor.h"
#include "train/step.h"

namespace hearth {

class RunSampler {
 public:
  // Everything must outlive the sampler.
  RunSampler(const RunConfig& config, const Tokenizer& tokenizer, Device& device, StepRunner& runner,
             const ProcessGroups& groups);

  // The prompt and what follows it.  All ranks call it; where each holds the whole model, rank 0 draws and
  // the others get an empty text at once.  `wish` is asked before every token; a wish ends the text.
  struct Sample {
    std::string text;
    StopWish stop = StopWish::none;  // agreed by all ranks, where they draw together
  };
  Sample draw(const std::function<StopWish()>& wish);

 private:
  const RunConfig& config_;
  const Tokenizer& tokenizer_;
  StepRunner& runner_;
  const bool together_;  // the model is split: every rank takes part
  std::unique_ptr<Predictor> predictor_;
};

}  // namespace hearth
