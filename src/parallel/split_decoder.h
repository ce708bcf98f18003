// SplitDecoder: the forward pass for generation when the model is split over ranks, as in a training run.
//
// There is no key/value cache: each token runs the whole text through the forward-only schedule of the
// pipeline, as one sequence.  That is slow, but needs no memory beside what training has, and samples during
// a run are short.  Every rank of the run makes the same calls and gets the same logits, in the same bits, so
// that all ranks draw the same text.
#pragma once

#include <span>
#include <vector>

#include "model/predictor.h"
#include "parallel/pipeline.h"

namespace hearth {

class SplitDecoder final : public Predictor {
 public:
  // `pipeline` and `groups` must outlive the decoder.
  SplitDecoder(const ModelConfig& model, Precision precision, Device& device, Pipeline& pipeline,
               const ProcessGroups& groups);

  int64_t context() const override { return model_.context; }
  int64_t length() const override { return static_cast<int64_t>(tokens_.size()); }
  void prefill(std::span<const int32_t> tokens) override;
  void step(int32_t token) override;
  void logits(std::vector<float>& out) override;

 private:
  void carve(Carver& memory);

  const ModelConfig model_;
  const Precision precision_;
  Device& device_;
  Pipeline& pipeline_;
  const ProcessGroups& groups_;
  std::vector<int32_t> tokens_;
  Buffer buffer_;
  Tensor shards_;  // [T, V / T] the columns of each rank of the tensor axis
  Tensor logits_;  // f32 [1, V]
};

}  // namespace hearth
