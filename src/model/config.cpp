#include "model/config.h"

#include "base/error.h"

namespace hearth {

namespace {

ModelConfig gpt2(int64_t layers, int64_t heads, int64_t channels) {
  ModelConfig m;
  m.layers = layers;
  m.heads = heads;
  m.channels = channels;
  m.context = 1024;
  m.vocab = 50257;
  return m;
}

// The character-level models train on a corpus whose characters are the vocabulary,
// so vocab stays 0 (inferred).
ModelConfig small(int64_t layers, int64_t heads, int64_t channels, int64_t context, double dropout,
                  bool bias) {
  ModelConfig m;
  m.layers = layers;
  m.heads = heads;
  m.channels = channels;
  m.context = context;
  m.dropout = dropout;
  m.bias = bias;
  return m;
}

struct Preset {
  const char* name;
  ModelConfig model;
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table = {
      {"gpt2-124m", gpt2(12, 12, 768)},
      {"gpt2-350m", gpt2(24, 16, 1024)},
      {"gpt2-774m", gpt2(36, 20, 1280)},
      {"gpt2-1558m", gpt2(48, 25, 1600)},
      {"shakespeare-char", small(6, 6, 384, 256, 0.2, false)},
      {"shakespeare-char-cpu", small(4, 4, 128, 64, 0.0, false)},
      {"tiny", small(4, 4, 64, 64, 0.0, true)},
  };
  return table;
}

void require_range(const char* key, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    fail_usage(key, " = ", value, ", expected a whole number from ", least, " to ", most);
}

void require_built(const char* key, const std::string& value, const std::string& built,
                   const std::string& planned) {
  if (value == built) return;
  if (value == planned) fail_usage(key, " = \"", value, "\" is not built yet; use \"", built, "\"");
  fail_usage(key, " = \"", value, "\", expected \"", built, "\"");
}

}  // namespace

std::optional<ModelConfig> model_preset(const std::string& name) {
  for (const Preset& preset : presets())
    if (name == preset.name) return preset.model;
  return std::nullopt;
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets())
    names.emplace_back(preset.name);
  return names;
}

void validate(const ModelConfig& m) {
  require_range("model.layers", m.layers, 1, 10000);
  require_range("model.heads", m.heads, 1, 10000);
  require_range("model.channels", m.channels, 1, int64_t{1} << 20);
  require_range("model.context", m.context, 1, int64_t{1} << 24);
  require_range("model.vocab", m.vocab, 0, int64_t{1} << 24);
  require_range("model.ffn", m.ffn, 0, int64_t{1} << 24);
  if (m.channels % m.heads != 0)
    fail_usage("model.channels = ", m.channels, " is not divisible by model.heads = ", m.heads,
               "; the nearest channels that are: ", m.channels / m.heads * m.heads, " and ",
               (m.channels / m.heads + 1) * m.heads);
  if (m.head_size() % 8 != 0 || m.head_size() > 128)
    fail_usage("the head size is model.channels / model.heads = ", m.channels, " / ", m.heads, " = ",
               m.head_size(), ", expected a multiple of 8 up to 128");
  if (m.kv_heads < 0 || m.kv_heads > m.heads || m.heads % m.key_value_heads() != 0)
    fail_usage("model.kv_heads = ", m.kv_heads, " does not divide model.heads = ", m.heads);
  if (m.ffn_width() % 8 != 0) fail_usage("model.ffn = ", m.ffn, ", expected a multiple of 8");
  if (!(m.dropout >= 0.0 && m.dropout < 1.0))
    fail_usage("model.dropout = ", m.dropout, ", expected a number from 0 up to, not including, 1");
  require_built("model.norm", m.norm, "layernorm", "rmsnorm");
  require_built("model.activation", m.activation, "gelu", "swiglu");
  require_built("model.position", m.position, "learned", "rope");
}

int64_t matmul_parameters(const ModelConfig& m) {
  const int64_t c = m.channels;
  const int64_t block = m.qkv_width() * c + c * c + 2 * m.ffn_width() * c;
  return m.layers * block + m.vocab * c;
}

double flops_per_token(const ModelConfig& m) {
  return 6.0 * static_cast<double>(matmul_parameters(m)) + 6.0 * static_cast<double>(m.layers) *
                                                               static_cast<double>(m.channels) *
                                                               static_cast<double>(m.context);
}

const char* name_of(Recompute policy) {
  switch (policy) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::block:
      return "block";
  }
  return "?";
}

}  // namespace hearth
