#include "model/decoder.h"

namespace hearth {

Decoder::Decoder(const ModelConfig& model, Precision precision, Device& device,
                 const ParameterSet& parameters)
    : model_(model), precision_(precision), device_(device), ops_(device.ops()) {
  Carver measure;
  carve(measure);
  buffer_ = Buffer(device, measure.used());
  Carver memory(buffer_.data(), buffer_.bytes());
  carve(memory);
  for (int64_t l = 0; l < model.layers; ++l)
    blocks_.push_back(block_weights(parameters, local_shape(model, {}), l));
  token_embedding_ = affine(parameters, "wte");
  position_embedding_ = affine(parameters, "wpe");
  final_norm_ = affine(parameters, "ln_f");
  head_ = affine(parameters, model.tied ? "wte" : "lm_head");
}

void Decoder::carve(Carver& memory) {
  const DType c = compute_dtype(precision_);
  const DType m = master_dtype(precision_);
  const int64_t n = model_.context;
  caches_.clear();
  for (int64_t l = 0; l < model_.layers; ++l)
    caches_.push_back(memory.take(c, {n, model_.qkv_width()}));
  tokens_ = memory.take(DType::i32, {n});
  positions_ = memory.take(DType::i32, {n});
  residual_ = memory.take(c, {n, model_.channels});
  normed_ = memory.take(c, {n, model_.channels});
  attention_ = memory.take(c, {n, model_.channels});
  branch_ = memory.take(c, {n, model_.channels});
  hidden_ = memory.take(c, {n, model_.ffn_width()});
  mean_ = memory.take(m, {n});
  rstd_ = memory.take(m, {n});
  lse_ = memory.take(m, {n * model_.heads});
  logits_ = memory.take(c, {1, model_.padded_vocab()});
  logits_f32_ = memory.take(DType::f32, {1, model_.padded_vocab()});
}

void Decoder::prefill(std::span<const int32_t> tokens) {
  length_ = 0;
  run(tokens);
}

void Decoder::step(int32_t token) {
  run({&token, 1});
}

void Decoder::run(std::span<const int32_t> tokens) {
  const int64_t begin = length_;
  const int64_t count = static_cast<int64_t>(tokens.size());
  check(count >= 1 && begin + count <= model_.context, count, " tokens after ", begin, " in a context of ",
        model_.context);
  check(begin == 0 || count == 1, "only one token at a time after the prompt");

  std::vector<int32_t> positions(tokens.size());
  for (int64_t i = 0; i < count; ++i)
    positions[i] = static_cast<int32_t>(begin + i);
  device_.copy_in(tokens_.rows(0, count), tokens.data());
  device_.copy_in(positions_.rows(0, count), positions.data());

  const Tensor x = residual_.rows(0, count);
  ops_.embed_tokens(tokens_.rows(0, count), token_embedding_.weight, 0, x);
  ops_.embed_positions(x, positions_.rows(0, count), position_embedding_.weight, {});
  Tensor branch, branch_bias;
  for (size_t l = 0; l < blocks_.size(); ++l) {
    block(l, begin, count, branch, branch_bias);
    branch = branch_.rows(0, count);
    branch_bias = blocks_[l].mlp_proj.bias;
  }
  norm(count, branch, branch_bias, final_norm_);
  ops_.linear_forward(normed_.rows(count - 1, 1), head_.weight, {}, logits_);
  device_.synchronize();
  length_ += count;
}

// residual += branch + bias; normed = norm(residual).
void Decoder::norm(int64_t count, const Tensor& branch, const Tensor& branch_bias, const Affine& weights) {
  Ops::ResidualNorm p;
  p.residual = residual_.rows(0, count);
  p.branch = branch;
  p.branch_bias = branch_bias;
  p.residual_out = p.residual;
  p.weight = weights.weight;
  p.bias = weights.bias;
  p.normed = normed_.rows(0, count);
  p.mean = mean_.rows(0, count);
  p.rstd = rstd_.rows(0, count);
  ops_.residual_norm_forward(p);
}

void Decoder::block(size_t layer, int64_t begin, int64_t count, const Tensor& branch_before,
                    const Tensor& bias_before) {
  const BlockWeights& w = blocks_[layer];
  const Tensor normed = normed_.rows(0, count);
  const Tensor attention = attention_.rows(0, count);
  const Tensor branch = branch_.rows(0, count);
  const Tensor hidden = hidden_.rows(0, count);

  norm(count, branch_before, bias_before, w.norm1);
  ops_.linear_forward(normed, w.qkv.weight, w.qkv.bias, caches_[layer].rows(begin, count));
  attend(layer, begin, count, attention);
  ops_.linear_forward(attention, w.proj.weight, {}, branch);
  norm(count, branch, w.proj.bias, w.norm2);
  ops_.linear_forward(normed, w.fc.weight, w.fc.bias, hidden, Activation::gelu);
  ops_.linear_forward(hidden, w.mlp_proj.weight, {}, branch);
}

void Decoder::attend(size_t layer, int64_t begin, int64_t count, const Tensor& out) {
  const int64_t heads = model_.heads;
  const int64_t kv_heads = model_.key_value_heads();
  const int64_t d = model_.head_size();
  const Tensor cached = caches_[layer].rows(0, begin + count);
  const Tensor q = caches_[layer].rows(begin, count).heads(1, 0, heads, d);
  const Tensor k = cached.heads(1, heads * d, kv_heads, d);
  const Tensor v = cached.heads(1, (heads + kv_heads) * d, kv_heads, d);
  const Tensor out_heads = out.heads(1, 0, heads, d);
  if (begin == 0)
    ops_.attention_forward(q, k, v, out_heads, Tensor(lse_.data, lse_.dtype, {1, heads, count}));
  else
    ops_.attention_decode(q, k, v, begin + count, out_heads);
}

void Decoder::logits(std::vector<float>& out) {
  ops_.cast(logits_, logits_f32_);
  out.resize(static_cast<size_t>(model_.vocab));
  device_.copy_out(out.data(), logits_f32_.slice(1, 0, model_.vocab).reshaped({1, model_.vocab}));
}

}  // namespace hearth
