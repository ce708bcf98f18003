#include "model/stage.h"

namespace hearth {

namespace {

// The q, k and v heads of a fused activation (or gradient) [N, (H + 2 Hkv) D].
struct Heads {
  Tensor q, k, v;
};

Heads split_heads(const Tensor& qkv, const LocalShape& local, int64_t batch) {
  const int64_t d = local.head_size;
  const int64_t heads = local.heads;
  const int64_t kv_heads = local.kv_heads;
  return {qkv.heads(batch, 0, heads, d), qkv.heads(batch, heads * d, kv_heads, d),
          qkv.heads(batch, (heads + kv_heads) * d, kv_heads, d)};
}

int64_t tokens_of(const Microbatch& batch) {
  return batch.rows * batch.time;
}

}  // namespace

Stage::Stage(const ModelConfig& model, const StageOptions& options, Device& device, ParameterSet& parameters,
             Communicator& tensor_group)
    : model_(model),
      local_(local_shape(model, options.shard)),
      options_(options),
      device_(device),
      ops_(device.ops()),
      tp_(tensor_group, options.sequence) {
  Carver activations, scratch;
  carve_stage(model, options, activations, scratch);
  activation_buffer_ = Buffer(device, activations.used());
  scratch_buffer_ = Buffer(device, scratch.used());
  activations = Carver(activation_buffer_.data(), activation_buffer_.bytes());
  scratch = Carver(scratch_buffer_.data(), scratch_buffer_.bytes());
  memory_ = carve_stage(model, options, activations, scratch);

  loss_buffer_ = Buffer(device, sizeof(double));
  loss_total_ = Tensor(loss_buffer_.data(), DType::f64, {1});
  clear_loss();

  for (int64_t l = 0; l < options.layers; ++l)
    blocks_.push_back(block_weights(parameters, local_, options.first_layer + l));
  token_embedding_ = affine(parameters, "wte");
  position_embedding_ = affine(parameters, "wpe");
  final_norm_ = affine(parameters, "ln_f");
  head_ = affine(parameters, model.tied ? "wte" : "lm_head");
}

void Stage::clear_loss() {
  ops_.fill_zero(loss_total_);
}

void Stage::set_input(int slot, const Microbatch& batch, std::span<const int32_t> tokens,
                      std::span<const int32_t> targets) {
  const int64_t n = tokens_of(batch);
  check(batch.rows <= options_.rows && batch.time <= options_.time, "microbatch of ", batch.rows, " x ",
        batch.time, " in a stage for ", options_.rows, " x ", options_.time);
  check(static_cast<int64_t>(tokens.size()) == n, "got ", tokens.size(), " tokens for ", n, " places");
  const Slot& s = memory_.slots[slot];
  host_positions_.resize(static_cast<size_t>(n));
  for (int64_t r = 0; r < n; ++r)
    host_positions_[r] = static_cast<int32_t>(r % batch.time);
  device_.copy_in(s.tokens.rows(0, n), tokens.data());
  device_.copy_in(s.positions.rows(0, n), host_positions_.data());
  if (!targets.empty()) device_.copy_in(s.targets.rows(0, n), targets.data());
}

// ---- views

LayerActivations Stage::view(const LayerActivations& a, const Microbatch& batch) const {
  const int64_t n = tokens_of(batch);
  LayerActivations v = a;
  for (Tensor* t :
       {&v.residual, &v.mean1, &v.rstd1, &v.normed1, &v.residual_mid, &v.mean2, &v.rstd2, &v.normed2})
    *t = stream_rows(*t, batch);
  for (Tensor* t : {&v.qkv, &v.attention, &v.pre, &v.gelu})
    *t = t->rows(0, n);
  v.lse = Tensor(a.lse.data, a.lse.dtype, {batch.rows, local_.heads, batch.time});
  return v;
}

Dropout Stage::dropout(int64_t block, DropoutSite site, const Microbatch& batch) const {
  Dropout d;
  d.probability = batch.train ? model_.dropout : 0.0;
  d.seed = options_.seed;
  d.layer = static_cast<uint32_t>(options_.first_layer + block);
  d.site = site;
  d.sample_offset = batch.sample_offset;
  d.time = batch.time;
  d.first_row = tp_.shard(tokens_of(batch)).first;
  return d;
}

Tensor Stage::stream_rows(const Tensor& t, const Microbatch& batch) const {
  return t.rows(0, tp_.shard(tokens_of(batch)).count);
}

Tensor Stage::whole(const Microbatch& batch) const {
  const Tensor& all = memory_.work.whole;
  return all ? all.rows(0, tokens_of(batch)) : Tensor{};
}

Tensor Stage::input(int slot, const Microbatch& batch) {
  return stream_rows(memory_.slots[slot].layers[0].residual, batch);
}

Tensor Stage::output(int slot, const Microbatch& batch) {
  return stream_rows(memory_.slots[slot].residual_final, batch);
}

Tensor Stage::d_output(const Microbatch& batch) {
  return stream_rows(memory_.work.d_output, batch);
}

Tensor Stage::d_input(const Microbatch& batch) {
  return d_residual(batch);
}

Tensor Stage::d_residual(const Microbatch& batch) const {
  return stream_rows(memory_.work.d_residual, batch);
}

Tensor Stage::d_branch(const Microbatch& batch) const {
  return stream_rows(memory_.work.d_branch, batch);
}

// ---- forward

void Stage::forward(int slot, const Microbatch& batch) {
  const ProfileRange range(device_, "forward");
  check(options_.training || !batch.train, "a forward-only stage cannot train");
  const Slot& s = memory_.slots[slot];
  if (first()) embed(s, batch, input(slot, batch));

  Stream stream{input(slot, batch), {}, {}, {}};
  for (int64_t l = 0; l < options_.layers; ++l)
    stream = block_forward(l, view(s.layers[l], batch), stream, batch);

  const Tensor normed = stream_rows(memory_.work.normed_final, batch);
  complete(stream, output(slot, batch), last() ? final_norm_ : Affine{}, normed,
           stream_rows(s.mean_final, batch), stream_rows(s.rstd_final, batch));
  if (last() && batch.loss) head(s, batch, normed);
}

void Stage::embed(const Slot& s, const Microbatch& batch, const Tensor& x) {
  const int64_t n = tokens_of(batch);
  const RowShard shard = tp_.shard(n);
  // A vocabulary shard finds its own tokens: partial sums before, replicated or split by rows after.
  ops_.embed_tokens(s.tokens.rows(0, n), token_embedding_.weight, local_.vocab_shard.start,
                    tp_.partial(x, whole(batch)));
  tp_.leave(x, whole(batch));
  ops_.embed_positions(x, s.positions.rows(shard.first, shard.count), position_embedding_.weight,
                       dropout(0, DropoutSite::embedding, batch));
}

void Stage::complete(const Stream& stream, const Tensor& x, const Affine& norm, const Tensor& normed,
                     const Tensor& mean, const Tensor& rstd) {
  Ops::ResidualNorm p;
  p.residual = stream.residual;
  p.branch = stream.branch;
  p.branch_bias = stream.branch_bias;
  p.dropout = stream.dropout;
  p.residual_out = x;
  p.weight = norm.weight;
  p.bias = norm.bias;
  p.normed = normed;
  p.mean = mean;
  p.rstd = rstd;
  ops_.residual_norm_forward(p);
}

Stage::Stream Stage::block_forward(int64_t block, const LayerActivations& a, const Stream& stream,
                                   const Microbatch& batch) {
  complete(stream, a.residual, blocks_[block].norm1, a.normed1, a.mean1, a.rstd1);
  attention_half(block, a, batch);
  mlp_hidden(block, a, batch);
  const Tensor branch = stream_rows(memory_.work.branch, batch);
  // Row-parallel: partial sums before, replicated or split by rows after; the bias is added behind that.
  ops_.linear_forward(a.gelu, blocks_[block].mlp_proj.weight, {}, tp_.partial(branch, whole(batch)));
  tp_.leave(branch, whole(batch));
  return {a.residual_mid, branch, blocks_[block].mlp_proj.bias, dropout(block, DropoutSite::mlp, batch)};
}

// From normed1 to residual_mid and normed2.
void Stage::attention_half(int64_t block, const LayerActivations& a, const Microbatch& batch) {
  const BlockWeights& w = blocks_[block];
  // Column-parallel: replicated or split by rows before, replicated after.
  ops_.linear_forward(tp_.enter(a.normed1, whole(batch)), w.qkv.weight, w.qkv.bias, a.qkv);
  const Heads heads = split_heads(a.qkv, local_, batch.rows);
  const Tensor out = a.attention.heads(batch.rows, 0, local_.heads, local_.head_size);
  ops_.attention_forward(heads.q, heads.k, heads.v, out, a.lse);
  const Tensor branch = stream_rows(memory_.work.branch, batch);
  // Row-parallel: partial sums before, replicated or split by rows after.
  ops_.linear_forward(a.attention, w.proj.weight, {}, tp_.partial(branch, whole(batch)));
  tp_.leave(branch, whole(batch));
  complete({a.residual, branch, w.proj.bias, dropout(block, DropoutSite::attention, batch)}, a.residual_mid,
           w.norm2, a.normed2, a.mean2, a.rstd2);
}

void Stage::mlp_hidden(int64_t block, const LayerActivations& a, const Microbatch& batch) {
  const BlockWeights& w = blocks_[block];
  // Column-parallel: replicated or split by rows before, replicated after.
  ops_.linear_forward(tp_.enter(a.normed2, whole(batch)), w.fc.weight, w.fc.bias, a.gelu, Activation::gelu,
                      a.pre);
}

// ---- head and loss

// In chunks of tokens, so that the full logits never exist.  The head is column-parallel: its input is
// replicated or split by rows before, replicated after; the gradient of that goes the other way.
void Stage::head(const Slot& s, const Microbatch& batch, const Tensor& normed) {
  const ProfileRange range(device_, "head");
  const int64_t n = tokens_of(batch);
  const int64_t chunk = memory_.work.logits.dim(0);
  const Tensor input = tp_.enter(normed, whole(batch));
  const Tensor d_normed = batch.train ? stream_rows(s.d_normed_final, batch) : Tensor{};
  const Tensor d_input = batch.train ? tp_.partial(d_normed, whole(batch)) : Tensor{};
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t count = std::min(chunk, n - begin);
    head_chunk(s.targets.rows(begin, count), input.rows(begin, count),
               batch.train ? d_input.rows(begin, count) : Tensor{});
  }
  if (batch.train) tp_.leave(d_normed, whole(batch));
}

Tensor Stage::logits(const Microbatch& batch, int64_t row) {
  check(last() && !batch.loss, "logits behind a pass for the loss, or not on the last stage");
  // Column-parallel: replicated or split by rows before, replicated after.
  const Tensor input = tp_.enter(stream_rows(memory_.work.normed_final, batch), whole(batch));
  const Tensor logits = memory_.work.logits.rows(0, 1);
  ops_.linear_forward(input.rows(row, 1), head_.weight, {}, logits);
  return logits;
}

// d_normed may be the memory of normed: it is written when the chunk of normed has been used.
void Stage::head_chunk(const Tensor& targets, const Tensor& normed, const Tensor& d_normed) {
  const StageWorkspace& w = memory_.work;
  const int64_t count = targets.dim(0);
  const Tensor logits = w.logits.rows(0, count);
  const Tensor stats = Tensor(w.stats.data, w.stats.dtype, {3, count});
  const Tensor losses = w.losses.rows(0, count);
  const VocabShard& shard = local_.vocab_shard;

  ops_.linear_forward(normed, head_.weight, {}, logits);
  ops_.cross_entropy_statistics(logits, targets, shard, stats);
  if (tp_.size() > 1) {
    // Each shard knows its own columns: the largest logit of all, then the sums relative to it.
    const Tensor global_max = w.global_max.rows(0, count);
    ops_.copy(stats.rows(0, 1).reshaped({count}), global_max);
    tp_.max(global_max);
    ops_.cross_entropy_rescale(stats, global_max);
    tp_.sum(stats.rows(1, 2));
  }
  ops_.cross_entropy_finish(logits, targets, shard, stats, losses, d_normed ? logits : Tensor{});
  ops_.sum(losses, loss_total_);
  if (!d_normed) return;
  ops_.linear_backward_weight(logits, normed, head_.d_weight, {});
  ops_.linear_backward_input(logits, head_.weight, d_normed);
}

// ---- backward

void Stage::backward(int slot, const Microbatch& batch, const std::function<void(int64_t)>& layer_done) {
  const ProfileRange range(device_, "backward");
  const Slot& s = memory_.slots[slot];
  output_backward(s, batch);
  for (int64_t l = options_.layers - 1; l >= 0; --l) {
    const LayerActivations a = view(s.layers[l], batch);
    recompute(l, a, batch);
    block_backward(l, a, batch);
    if (layer_done) layer_done(options_.first_layer + l);
  }
  if (first()) embed_backward(s, batch);
}

// Through the final norm (or only the last addition, on an earlier stage) to the last block's branch.
void Stage::output_backward(const Slot& s, const Microbatch& batch) {
  const int64_t block = options_.layers - 1;
  if (!last()) ops_.copy(d_output(batch), d_residual(batch));
  Ops::ResidualNormBackward p;
  p.d_residual = d_residual(batch);
  p.accumulate = !last();
  p.x = stream_rows(s.residual_final, batch);
  p.d_branch = d_branch(batch);
  p.d_branch_bias = blocks_[block].mlp_proj.d_bias;
  p.dropout = dropout(block, DropoutSite::mlp, batch);
  if (last()) {
    p.d_normed = stream_rows(s.d_normed_final, batch);
    p.mean = stream_rows(s.mean_final, batch);
    p.rstd = stream_rows(s.rstd_final, batch);
    p.weight = final_norm_.weight;
    p.d_weight = final_norm_.d_weight;
    p.d_bias = final_norm_.d_bias;
  }
  ops_.residual_norm_backward(p);
}

// Makes again what the policy did not keep: the same operations on the same values, so the same bits.
void Stage::recompute(int64_t block, const LayerActivations& a, const Microbatch& batch) {
  const BlockWeights& w = blocks_[block];
  switch (options_.recompute) {
    case Recompute::none:
      break;
    case Recompute::selective:
      ops_.norm_apply(a.residual, a.mean1, a.rstd1, w.norm1.weight, w.norm1.bias, a.normed1);
      ops_.norm_apply(a.residual_mid, a.mean2, a.rstd2, w.norm2.weight, w.norm2.bias, a.normed2);
      ops_.gelu_forward(a.pre, a.gelu);
      break;
    case Recompute::block:
      complete({a.residual, {}, {}, {}}, a.residual, w.norm1, a.normed1, a.mean1, a.rstd1);
      attention_half(block, a, batch);
      mlp_hidden(block, a, batch);
      break;
  }
}

void Stage::block_backward(int64_t block, const LayerActivations& a, const Microbatch& batch) {
  const BlockWeights& w = blocks_[block];
  const Tensor d_normed = stream_rows(memory_.work.branch, batch);

  Ops::ResidualNormBackward p;
  p.d_normed = d_normed;
  p.d_residual = d_residual(batch);

  mlp_backward(block, a, batch, d_branch(batch), d_normed);
  p.x = a.residual_mid;
  p.mean = a.mean2;
  p.rstd = a.rstd2;
  p.weight = w.norm2.weight;
  p.d_weight = w.norm2.d_weight;
  p.d_bias = w.norm2.d_bias;
  p.d_branch = d_branch(batch);
  p.d_branch_bias = w.proj.d_bias;
  p.dropout = dropout(block, DropoutSite::attention, batch);
  ops_.residual_norm_backward(p);

  attention_half_backward(block, a, batch, d_branch(batch), d_normed);
  p.x = a.residual;
  p.mean = a.mean1;
  p.rstd = a.rstd1;
  p.weight = w.norm1.weight;
  p.d_weight = w.norm1.d_weight;
  p.d_bias = w.norm1.d_bias;
  p.d_branch = block > 0 ? d_branch(batch) : Tensor{};
  p.d_branch_bias = block > 0 ? blocks_[block - 1].mlp_proj.d_bias : Tensor{};
  p.dropout = dropout(block - 1, DropoutSite::mlp, batch);
  ops_.residual_norm_backward(p);
}

// Of the two linears, each needs all rows of its gradient and of its input, which `whole` holds in turn.  Its
// norm's gradients, and the biases added to the stream, come from this rank's rows alone.
void Stage::mlp_backward(int64_t block, const LayerActivations& a, const Microbatch& batch,
                         const Tensor& d_branch, const Tensor& d_normed) {
  const BlockWeights& w = blocks_[block];
  const Tensor whole = this->whole(batch);
  const Tensor d_pre = memory_.work.d_pre.rows(0, tokens_of(batch));
  // Replicated or split by rows before, replicated after.
  const Tensor d_out = tp_.enter(d_branch, whole);
  ops_.linear_backward_weight(d_out, a.gelu, w.mlp_proj.d_weight, {});
  ops_.linear_backward_input(d_out, w.mlp_proj.weight, d_pre, a.pre);
  ops_.linear_backward_weight(d_pre, tp_.enter(a.normed2, whole), w.fc.d_weight, w.fc.d_bias);
  // Partial sums before, replicated or split by rows after.
  ops_.linear_backward_input(d_pre, w.fc.weight, tp_.partial(d_normed, whole));
  tp_.leave(d_normed, whole);
}

void Stage::attention_half_backward(int64_t block, const LayerActivations& a, const Microbatch& batch,
                                    const Tensor& d_branch, const Tensor& d_normed) {
  const BlockWeights& w = blocks_[block];
  const int64_t n = tokens_of(batch);
  const Tensor whole = this->whole(batch);
  const Tensor d_attention = memory_.work.d_attention.rows(0, n);
  const Tensor d_qkv = memory_.work.d_qkv.rows(0, n);
  // Replicated or split by rows before, replicated after.
  const Tensor d_out = tp_.enter(d_branch, whole);
  ops_.linear_backward_weight(d_out, a.attention, w.proj.d_weight, {});
  ops_.linear_backward_input(d_out, w.proj.weight, d_attention);

  const auto heads = [&](const Tensor& t) { return t.heads(batch.rows, 0, local_.heads, local_.head_size); };
  const Heads forward = split_heads(a.qkv, local_, batch.rows);
  const Heads d = split_heads(d_qkv, local_, batch.rows);
  const Tensor delta = Tensor(memory_.work.delta.data, a.lse.dtype, a.lse.shape);
  ops_.attention_backward(forward.q, forward.k, forward.v, heads(a.attention), heads(d_attention), a.lse,
                          delta, d.q, d.k, d.v);

  ops_.linear_backward_weight(d_qkv, tp_.enter(a.normed1, whole), w.qkv.d_weight, w.qkv.d_bias);
  // Partial sums before, replicated or split by rows after.
  ops_.linear_backward_input(d_qkv, w.qkv.weight, tp_.partial(d_normed, whole));
  tp_.leave(d_normed, whole);
}

void Stage::embed_backward(const Slot& s, const Microbatch& batch) {
  const int64_t n = tokens_of(batch);
  const RowShard shard = tp_.shard(n);
  const Tensor d = d_residual(batch);
  ops_.embed_positions_backward(d, s.positions.rows(shard.first, shard.count),
                                dropout(0, DropoutSite::embedding, batch), position_embedding_.d_weight);
  // Replicated or split by rows before, replicated after: any rank's vocabulary may have any token.
  const Tensor d_tokens = tp_.enter(d, whole(batch));
  ops_.embed_tokens_backward(s.tokens.rows(0, n), d_tokens, local_.vocab_shard.start,
                             token_embedding_.d_weight);
}

}  // namespace hearth
