#include "model/stage.h"

namespace hearth {

Affine affine(const ParameterSet& parameters, const std::string& prefix) {
  Affine views;
  if (const Parameter* weight = parameters.find(prefix + ".weight")) {
    views.weight = weight->weight;
    views.d_weight = weight->grad;
  }
  if (const Parameter* bias = parameters.find(prefix + ".bias")) {
    views.bias = bias->weight;
    views.d_bias = bias->grad;
  }
  return views;
}

namespace {

// q, k and v lie behind each other: from the first one's view, the view of all rows.
Tensor fused(const Tensor& q, int64_t rows) {
  if (!q) return {};
  return Tensor(q.data, q.dtype, q.shape.with(0, rows));
}

}  // namespace

BlockWeights block_weights(const ParameterSet& parameters, const LocalShape& local, int64_t layer) {
  const std::string h = "h." + std::to_string(layer) + ".";
  const Affine q = affine(parameters, h + "attn.q");
  const int64_t rows = local.qkv_width();
  BlockWeights w;
  w.norm1 = affine(parameters, h + "ln_1");
  w.qkv = {fused(q.weight, rows), fused(q.bias, rows), fused(q.d_weight, rows), fused(q.d_bias, rows)};
  w.proj = affine(parameters, h + "attn.proj");
  w.norm2 = affine(parameters, h + "ln_2");
  w.fc = affine(parameters, h + "mlp.fc");
  w.mlp_proj = affine(parameters, h + "mlp.proj");
  return w;
}

}  // namespace hearth
