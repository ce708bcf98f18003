// What one rank of the tensor-parallel axis holds of the model: heads, MLP features and vocabulary are split
// evenly; everything else is whole.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "device/ops.h"
#include "model/config.h"
#include "tensor/tensor.h"

namespace hearth {

struct ParamSpec;

// A place on the tensor-parallel axis.
struct TensorShard {
  int rank = 0;
  int size = 1;
};

// The widths of one rank's activations.
struct LocalShape {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_size;
  int64_t ffn;
  int64_t vocab;  // rows of the embedding and columns of the logits, padding included
  VocabShard vocab_shard;

  int64_t attention_width() const { return heads * head_size; }
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
};
LocalShape local_shape(const ModelConfig& model, TensorShard shard);

// Throws Error(usage) when the device cannot compute a model of these widths.
void require_supported(const Device& device, const ModelConfig& model, int64_t tensor_parallel);

// The rectangle of a parameter that the rank holds.
struct Rectangle {
  std::vector<int64_t> start;
  Shape shape;
};
Rectangle local_rectangle(const ParamSpec& spec, TensorShard shard);

// Throws Error(usage) when heads, MLP width or padded vocabulary cannot be split `size` ways; names the
// arithmetic and the sizes that would do.
void validate_tensor_parallel(const ModelConfig& model, int64_t size);

}  // namespace hearth
