#include "model/sharding.h"

#include <algorithm>
#include <string>

#include "model/parameters.h"

namespace hearth {

LocalShape local_shape(const ModelConfig& model, TensorShard shard) {
  LocalShape local;
  local.heads = model.heads / shard.size;
  local.kv_heads = model.key_value_heads() / shard.size;
  local.head_size = model.head_size();
  local.ffn = model.ffn_width() / shard.size;
  local.vocab = model.padded_vocab() / shard.size;
  local.vocab_shard.start = local.vocab * shard.rank;
  local.vocab_shard.valid = std::clamp<int64_t>(model.vocab - local.vocab_shard.start, 0, local.vocab);
  return local;
}

void require_supported(const Device& device, const ModelConfig& model, int64_t tensor_parallel) {
  const LocalShape local = local_shape(model, {0, static_cast<int>(tensor_parallel)});
  const ModelWidths widths{model.channels, local.head_size, local.ffn, local.vocab};
  if (const auto why = device.unsupported_widths(widths)) fail_usage("device ", device.kind(), ": ", *why);
}

Rectangle local_rectangle(const ParamSpec& spec, TensorShard shard) {
  Rectangle r{std::vector<int64_t>(static_cast<size_t>(spec.shape.rank()), 0), spec.shape};
  if (spec.shard_dim < 0) return r;
  const int64_t part = spec.shape[spec.shard_dim] / shard.size;
  r.shape = spec.shape.with(spec.shard_dim, part);
  r.start[static_cast<size_t>(spec.shard_dim)] = part * shard.rank;
  return r;
}

void validate_tensor_parallel(const ModelConfig& model, int64_t size) {
  const auto divides = [&model](int64_t t) {
    return model.key_value_heads() % t == 0 && model.ffn_width() % (8 * t) == 0 &&
           model.padded_vocab() % t == 0;
  };
  if (divides(size)) return;
  std::string possible;
  for (int64_t t = 1; t <= model.key_value_heads(); ++t)
    if (divides(t)) possible += (possible.empty() ? "" : ", ") + std::to_string(t);
  fail_usage("parallel.tensor = ", size, " cannot split ", model.key_value_heads(),
             " key/value heads, an MLP of ", model.ffn_width(), " (in multiples of 8) and ",
             model.padded_vocab(), " rows of vocabulary evenly; possible: ", possible);
}

}  // namespace hearth
