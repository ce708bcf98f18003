// The shape of a GPT, and its presets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hearth {

// GPT-2 / GPT-3 architecture: pre-layernorm blocks, learned positions, tanh GELU.  The string seams (norm,
// activation, position, kv_heads < heads, ffn) name what may come later; validate()
// refuses what is not built yet.
struct ModelConfig {
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t kv_heads = 0;  // 0 = heads
  int64_t channels = 768;
  int64_t ffn = 0;  // hidden width of the MLP; 0 = 4 * channels
  int64_t context = 1024;
  int64_t vocab = 0;     // 0 = taken from the data's tokenizer
  double dropout = 0.0;  // embedding, attention projection and MLP output; none on attention probabilities
  bool bias = true;      // biases of linear layers and layernorms
  bool tied = true;      // the LM head shares the token embedding
  std::string norm = "layernorm";
  std::string activation = "gelu";
  std::string position = "learned";

  int64_t head_size() const { return channels / heads; }
  int64_t key_value_heads() const { return kv_heads ? kv_heads : heads; }
  int64_t ffn_width() const { return ffn ? ffn : 4 * channels; }
  // Rows of q, k and v together.
  int64_t qkv_width() const { return (heads + 2 * key_value_heads()) * head_size(); }
  // The vocabulary rounded up to a multiple of 128, whatever the layout; columns >= vocab take no part.
  int64_t padded_vocab() const { return (vocab + 127) / 128 * 128; }
};

// Throws Error(usage) with one sentence for the first value that is out of range or does not fit the others.
void validate(const ModelConfig& model);

// "gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m", "shakespeare-char", "shakespeare-char-cpu", "tiny".
std::optional<ModelConfig> model_preset(const std::string& name);
std::vector<std::string> model_preset_names();

// What backward keeps and what it computes again.  The gradients have the same bits in all three.
enum class Recompute : uint8_t {
  none,       // every activation is kept
  selective,  // layernorm and GELU outputs are computed again
  block,      // only the input of each block is kept
};
const char* name_of(Recompute policy);

// Matrix-multiply parameters of the unpadded model: all linear layers and the LM head,
// not the embedding lookup.
int64_t matmul_parameters(const ModelConfig& model);
// Model FLOPs of a training step per token, forward and backward: 6 * N_matmul + 6 * L * C * T (causal
// attention; recomputation and padding are not counted).
double flops_per_token(const ModelConfig& model);

}  // namespace hearth
