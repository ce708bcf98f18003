// Decoder: the forward pass for generation, one sequence, with a key/value cache.
//
// The cache of a block is its fused qkv activation for all positions: the linear layer writes a token's q, k
// and v straight into its row, and attention reads the rows before it.
#pragma once

#include <span>
#include <vector>

#include "model/predictor.h"
#include "model/stage.h"

namespace hearth {

class Decoder final : public Predictor {
 public:
  // `parameters` must hold the whole model and outlive the decoder.
  Decoder(const ModelConfig& model, Precision precision, Device& device, const ParameterSet& parameters);

  int64_t context() const override { return model_.context; }
  // Tokens in the cache.
  int64_t length() const override { return length_; }

  // Empties the cache and runs the whole prompt.
  void prefill(std::span<const int32_t> tokens) override;
  // Runs one more token.
  void step(int32_t token) override;
  void logits(std::vector<float>& out) override;

 private:
  void carve(Carver& memory);
  void run(std::span<const int32_t> tokens);
  void norm(int64_t count, const Tensor& branch, const Tensor& branch_bias, const Affine& weights);
  void block(size_t layer, int64_t begin, int64_t count, const Tensor& branch_before,
             const Tensor& bias_before);
  void attend(size_t layer, int64_t begin, int64_t count, const Tensor& out);

  ModelConfig model_;
  Precision precision_;
  Device& device_;
  Ops& ops_;
  Buffer buffer_;
  int64_t length_ = 0;

  std::vector<BlockWeights> blocks_;
  Affine token_embedding_, position_embedding_, final_norm_, head_;

  std::vector<Tensor> caches_;  // per block [context, qkv width]
  Tensor tokens_, positions_;   // [context] i32
  Tensor residual_, normed_;    // [context, C]
  Tensor attention_, branch_;   // [context, C]
  Tensor hidden_;               // [context, F]
  Tensor mean_, rstd_, lse_;    // statistics that nothing reads
  Tensor logits_, logits_f32_;  // [1, V]
};

}  // namespace hearth
