#include "model/activations.h"

#include <algorithm>

namespace hearth {

namespace {

// Takes the tensors of blocks, each from the slot's region or from the shared one.
class LayerCarver {
 public:
  LayerCarver(const ModelConfig& model, const StageOptions& options)
      : model_(model),
        local_(local_shape(model, options.shard)),
        c_(compute_dtype(options.precision)),
        m_(master_dtype(options.precision)),
        n_(options.tokens()),
        stream_(options.stream_rows()) {}

  const LocalShape& local() const { return local_; }

  Tensor compute(Carver& region, int64_t width) const { return region.take(c_, {n_, width}); }
  // Of the residual stream.
  Tensor stream(Carver& region) const { return region.take(c_, {stream_, model_.channels}); }
  Tensor statistics(Carver& region) const { return region.take(m_, {stream_}); }
  // A number for each token of each head.
  Tensor of_heads(Carver& region) const { return region.take(m_, {n_ * local_.heads}); }

  // A full set of one block.
  LayerActivations whole(Carver& region) const {
    LayerActivations a;
    a.residual = stream(region);
    normed(region, a);
    a.gelu = compute(region, local_.ffn);
    inner(region, a);
    return a;
  }

  // The tensors that backward cannot make again from others with element-wise operations.
  void inner(Carver& region, LayerActivations& a) const {
    a.mean1 = statistics(region);
    a.rstd1 = statistics(region);
    a.qkv = compute(region, local_.qkv_width());
    a.lse = of_heads(region);
    a.attention = compute(region, local_.attention_width());
    a.residual_mid = stream(region);
    a.mean2 = statistics(region);
    a.rstd2 = statistics(region);
    a.pre = compute(region, local_.ffn);
  }

 private:
  void normed(Carver& region, LayerActivations& a) const {
    a.normed1 = stream(region);
    a.normed2 = stream(region);
  }

  const ModelConfig& model_;
  LocalShape local_;
  DType c_, m_;
  int64_t n_, stream_;
};

Slot carve_slot(const ModelConfig& model, const StageOptions& options, const LayerActivations& shared,
                Carver& region) {
  const LayerCarver carver(model, options);
  const int64_t n = options.tokens();
  Slot slot;
  slot.tokens = region.take(DType::i32, {n});
  slot.targets = region.take(DType::i32, {n});
  slot.positions = region.take(DType::i32, {n});
  for (int64_t l = 0; l < options.layers; ++l) {
    LayerActivations a = shared;
    if (options.training && options.recompute == Recompute::none) {
      a = carver.whole(region);
    } else if (options.training) {
      a.residual = carver.stream(region);
      if (options.recompute == Recompute::selective) carver.inner(region, a);
    }
    slot.layers.push_back(a);
  }
  slot.residual_final = carver.stream(region);
  slot.mean_final = carver.statistics(region);
  slot.rstd_final = carver.statistics(region);
  if (options.training) slot.d_normed_final = carver.stream(region);
  return slot;
}

// The one set of block tensors that slots share where the policy does not keep them.
LayerActivations carve_shared(const ModelConfig& model, const StageOptions& options, Carver& scratch) {
  const bool everything_kept = options.training && options.recompute == Recompute::none;
  return everything_kept ? LayerActivations{} : LayerCarver(model, options).whole(scratch);
}

StageWorkspace carve_workspace(const ModelConfig& model, const StageOptions& options, Carver& scratch) {
  const LayerCarver carver(model, options);
  const DType c = compute_dtype(options.precision);
  const DType m = master_dtype(options.precision);
  StageWorkspace w;
  if (options.sequence) w.whole = carver.compute(scratch, model.channels);
  w.branch = carver.stream(scratch);
  w.normed_final = carver.stream(scratch);
  const int64_t chunk = loss_chunk(model, options);
  w.logits = scratch.take(c, {chunk, carver.local().vocab});
  w.stats = scratch.take(m, {3, chunk});
  w.global_max = scratch.take(m, {chunk});
  w.losses = scratch.take(m, {chunk});
  if (!options.training) return w;
  w.d_residual = carver.stream(scratch);
  w.d_branch = model.dropout > 0 ? carver.stream(scratch) : w.d_residual;
  const bool last = options.first_layer + options.layers == model.layers;
  if (!last) w.d_output = carver.stream(scratch);
  w.d_attention = carver.compute(scratch, carver.local().attention_width());
  w.d_qkv = carver.compute(scratch, carver.local().qkv_width());
  w.d_pre = carver.compute(scratch, carver.local().ffn);
  w.delta = carver.of_heads(scratch);
  return w;
}

}  // namespace

int64_t loss_chunk(const ModelConfig& model, const StageOptions& options) {
  const int64_t row = model.padded_vocab() * size_of(compute_dtype(options.precision));
  const int64_t fitting = static_cast<int64_t>(options.logits_bytes) / row;
  const int64_t whole_tiles = fitting >= 128 ? fitting / 128 * 128 : fitting;
  return std::clamp<int64_t>(whole_tiles, 1, options.tokens());
}

StageMemory carve_stage(const ModelConfig& model, const StageOptions& options, Carver& activations,
                        Carver& scratch) {
  StageMemory memory;
  memory.work = carve_workspace(model, options, scratch);
  const LayerActivations shared = carve_shared(model, options, scratch);
  for (int s = 0; s < options.slots; ++s)
    memory.slots.push_back(carve_slot(model, options, shared, activations));
  return memory;
}

void plan_stage(const ModelConfig& model, const StageOptions& options, MemoryPlan& plan) {
  Carver activations, scratch;
  carve_stage(model, options, activations, scratch);
  plan.activations += activations.used();
  plan.scratch += scratch.used();
}

void add_op_sizes(const ModelConfig& model, const StageOptions& options, OpSizes& sizes) {
  const LocalShape local = local_shape(model, options.shard);
  const int64_t n = options.tokens(), c = model.channels;
  sizes.linears.insert(
      sizes.linears.end(),
      {{local.qkv_width(), c, n}, {c, local.attention_width(), n}, {local.ffn, c, n}, {c, local.ffn, n}});
  const int64_t chunk = loss_chunk(model, options);
  const bool last = options.first_layer + options.layers == model.layers;
  if (last) sizes.linears.push_back({local.vocab, c, chunk});
  if (last && n % chunk != 0) sizes.linears.push_back({local.vocab, c, n % chunk});
  sizes.norm_rows = std::max(sizes.norm_rows, options.stream_rows());
  sizes.channels = c;
}

}  // namespace hearth
