#include "train/generate.h"

#include <algorithm>

#include "base/philox.h"
#include "base/text.h"
#include "model/sharding.h"
#include "train/step.h"

namespace hearth {

namespace {

// Hands out only complete UTF-8 characters.
class Utf8Stream {
 public:
  explicit Utf8Stream(const std::function<void(std::string_view)>& emit) : emit_(emit) {}

  void add(const std::string& bytes) {
    pending_ += bytes;
    const size_t complete = complete_utf8_prefix(pending_);
    if (complete > 0) emit_(std::string_view(pending_).substr(0, complete));
    pending_.erase(0, complete);
  }
  void finish() {
    if (!pending_.empty()) emit_(pending_);
    pending_.clear();
  }

 private:
  const std::function<void(std::string_view)>& emit_;
  std::string pending_;
};

std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt) {
  if (!prompt.empty()) return tokenizer.encode(prompt);
  if (const auto start = tokenizer.end_of_text()) return {*start};
  return tokenizer.encode("\n");
}

// Learned positions end at the context: go on with the newest half of it as a fresh prompt.
std::span<const int32_t> newest(const std::vector<int32_t>& ids, int64_t count) {
  const size_t kept = std::min(ids.size(), static_cast<size_t>(count));
  return std::span(ids).last(kept);
}

}  // namespace

void generate(Predictor& predictor, const Tokenizer& tokenizer, const std::string& prompt,
              const SamplingConfig& sampling, const std::function<void(std::string_view)>& emit,
              const std::function<bool()>& stop) {
  std::vector<int32_t> ids = prompt_ids(tokenizer, prompt);
  const PhiloxKey key = random_key(sampling.seed, RandomDomain::sampling, 0);
  Utf8Stream stream(emit);
  std::vector<float> logits;
  predictor.prefill(newest(ids, predictor.context()));
  for (int64_t i = 0; i < sampling.tokens; ++i) {
    if (stop && stop()) break;
    predictor.logits(logits);
    const double uniform = uniform_open(random_block(key, static_cast<uint64_t>(i))[0]);
    const int32_t id = static_cast<int32_t>(pick_token(logits, sampling, uniform));
    if (tokenizer.end_of_text() == id) break;
    stream.add(tokenizer.decode(id));
    ids.push_back(id);
    if (i + 1 == sampling.tokens) break;
    if (predictor.length() < predictor.context())
      predictor.step(id);
    else
      predictor.prefill(newest(ids, std::max<int64_t>(1, predictor.context() / 2)));
  }
  stream.finish();
}

void generate(const LoadedModel& model, Device& device, const std::string& prompt,
              const SamplingConfig& sampling, const std::function<void(std::string_view)>& emit,
              const std::function<bool()>& stop) {
  if (!model.tokenizer)
    fail_data(
        "the checkpoint has no tokenizer, so text cannot be generated; train on data with a tokenizer.json");
  Decoder decoder(model.model, model.precision, device, *model.parameters);
  generate(decoder, *model.tokenizer, prompt, sampling, emit, stop);
}

namespace {

// Compute weights from the masters of a checkpoint,
// through a buffer for the largest tensor where the types differ.
void load_weights(const CheckpointReader& checkpoint, const ParameterSet& parameters, Device& device) {
  const DType master = master_dtype(parameters.precision());
  int64_t largest = 0;
  for (const Parameter& p : parameters.all())
    largest = std::max(largest, p.weight.elements());
  const bool same = compute_dtype(parameters.precision()) == master;
  const Buffer buffer(device, same ? 0 : static_cast<size_t>(largest * size_of(master)));
  for (const Parameter& p : parameters.all()) {
    const Tensor target = same ? p.weight : Tensor(buffer.data(), master, p.local.shape);
    checkpoint.read({CheckpointPiece::Kind::master, p.spec.name, p.spec.shape, p.local.start, target},
                    device);
    if (!same) device.ops().cast(target, p.weight);
  }
}

}  // namespace

LoadedModel load_model(const CheckpointReader& checkpoint, const RunConfig& config, Device& device) {
  LoadedModel loaded;
  loaded.model = config.model;
  require_supported(device, config.model, 1);
  // The precision of the training, or the nearest one that the device has.
  for (Precision precision : {config.train.precision, Precision::fp32, Precision::bf16}) {
    loaded.precision = precision;
    if (!device.unsupported(precision)) break;
  }
  loaded.parameters = std::make_unique<ParameterSet>(device, parameter_table(config.model), loaded.precision,
                                                     ParameterSet::Purpose::inference);
  load_weights(checkpoint, *loaded.parameters, device);
  if (!checkpoint.state().tokenizer_json.empty())
    loaded.tokenizer =
        load_tokenizer(checkpoint.state().tokenizer_json, (checkpoint.path() / "tokenizer.json").string());
  return loaded;
}

Evaluation evaluate(const LoadedModel& model, Device& device, const Dataset& dataset, int64_t tokens,
                    int64_t micro_batch) {
  StageOptions options;
  options.layers = model.model.layers;
  options.rows = micro_batch;
  options.time = model.model.context;
  options.precision = model.precision;
  options.training = false;
  SelfCommunicator self;
  Stage stage(model.model, options, device, *model.parameters, self);
  int64_t samples = dataset.samples();
  if (tokens > 0) samples = std::clamp<int64_t>(tokens / dataset.context(), 1, samples);
  for (int64_t first = 0; first < samples; first += micro_batch) {
    const HostBatch host = read_in_order(dataset, first, std::min(micro_batch, samples - first));
    const Microbatch batch{0, host.rows, dataset.context(), false};
    stage.set_input(0, batch, host.tokens, host.targets);
    stage.forward(0, batch);
  }
  double total = 0;
  device.copy_out(&total, stage.loss_total());
  const int64_t evaluated = samples * dataset.context();
  return {total / static_cast<double>(evaluated), evaluated};
}

}  // namespace hearth
