// Text generation from a checkpoint, and evaluation of one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "device/device.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/parameters.h"
#include "train/checkpoint.h"

namespace hearth {

struct SamplingConfig {
  int64_t tokens = 200;
  double temperature = 0.8;  // 0 = always the most likely token
  int64_t top_k = 0;         // 0 = all
  double top_p = 1.0;        // smallest set of tokens with at least this probability
  uint64_t seed = 1337;
};

// Weights of a checkpoint on a device, ready for inference.
struct LoadedModel {
  ModelConfig model;
  Precision precision = Precision::fp32;
  std::unique_ptr<ParameterSet> parameters;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the checkpoint has none
};
// `config` is the checkpoint's own configuration, already parsed.
LoadedModel load_model(const CheckpointReader& checkpoint, const RunConfig& config, Device& device);

// Draws `sampling.tokens` tokens after `prompt` and hands text to `emit` as soon as its UTF-8 characters are
// complete.  Draw i is a function of (seed, i).  Stops early at end-of-text or when `stop` returns true.
// An empty prompt starts with end-of-text, or with a newline where the tokenizer has none.
void generate(const LoadedModel& model, Device& device, const std::string& prompt,
              const SamplingConfig& sampling, const std::function<void(std::string_view)>& emit,
              const std::function<bool()>& stop);

// The same with a model that is there already (samples during training).
void generate(Predictor& predictor, const Tokenizer& tokenizer, const std::string& prompt,
              const SamplingConfig& sampling, const std::function<void(std::string_view)>& emit,
              const std::function<bool()>& stop);

// Picks a token from logits [vocab] (fp32, host): temperature, then top-k, then top-p.  `uniform` in (0, 1).
int64_t pick_token(std::span<const float> logits, const SamplingConfig& sampling, double uniform);

// Mean loss over the first `tokens` tokens of a dataset (0 = all), in whole samples.
struct Evaluation {
  double loss = 0;
  int64_t tokens = 0;
};
Evaluation evaluate(const LoadedModel& model, Device& device, const Dataset& dataset, int64_t tokens,
                    int64_t micro_batch);

}  // namespace hearth
