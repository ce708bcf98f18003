#include "parallel/split_decoder.h"

namespace hearth {

SplitDecoder::SplitDecoder(const ModelConfig& model, Precision precision, Device& device, Pipeline& pipeline,
                           const ProcessGroups& groups)
    : model_(model), precision_(precision), device_(device), pipeline_(pipeline), groups_(groups) {
  Carver measure;
  carve(measure);
  buffer_ = Buffer(device, measure.used());
  Carver memory(buffer_.data(), buffer_.bytes());
  carve(memory);
}

void SplitDecoder::carve(Carver& memory) {
  const int64_t ranks = groups_.tensor->size();
  shards_ = memory.take(compute_dtype(precision_), {ranks, model_.padded_vocab() / ranks});
  logits_ = memory.take(DType::f32, {1, model_.padded_vocab()});
}

void SplitDecoder::prefill(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  check(count >= 1 && count <= model_.context, count, " tokens in a context of ", model_.context);
  tokens_.assign(tokens.begin(), tokens.end());
}

void SplitDecoder::step(int32_t token) {
  check(length() < model_.context, "a token after a full context of ", model_.context);
  tokens_.push_back(token);
}

void SplitDecoder::logits(std::vector<float>& out) {
  // Sequence parallelism splits the tokens evenly, and the context is a multiple of the ranks.  Attention is
  // causal: what comes after the text changes nothing in it.
  const int64_t ranks = groups_.tensor->size();
  std::vector<int32_t> padded = tokens_;
  if (model_.context % ranks == 0) padded.resize(static_cast<size_t>((length() + ranks - 1) / ranks * ranks));
  const Tensor mine = pipeline_.predict(padded, length() - 1);
  if (pipeline_.last_stage()) {
    // Each rank's columns before; all columns, in order, on every rank after.
    if (ranks > 1) groups_.tensor->all_gather(mine, shards_).wait();
    const Tensor& whole = ranks > 1 ? shards_ : mine;
    device_.ops().cast(whole.reshaped({1, model_.padded_vocab()}), logits_);
  }
  // From the last stage to the others, and from the first replica to the others.
  if (groups_.pipeline->size() > 1) groups_.pipeline->broadcast(logits_, groups_.pipeline->size() - 1).wait();
  if (groups_.data->size() > 1) groups_.data->broadcast(logits_, 0).wait();
  out.resize(static_cast<size_t>(model_.vocab));
  device_.copy_out(out.data(), logits_.slice(1, 0, model_.vocab).reshaped({1, model_.vocab}));
  groups_.throw_if_failed();
}

}  // namespace hearth
