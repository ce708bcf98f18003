// Every operation of a GPT, declared once.
//
// reference/, cpu/ and cuda/ implement this class; one test body compares them.  The contract of each
// operation is its comment: mathematics, shapes, types, who accumulates.
//
// Types.  `c` is the compute type, `m` the master type (tensor/dtype.h): bf16/f32, f32/f32 or f64/f64.
//   c: compute weights, residual stream, activations, their gradients, logits and dlogits
//   m: layernorm statistics, lse, losses, all weight and bias gradients, master weights, AdamW moments
//   f64: the accumulated loss and the sums of squares
// Rounding.  An operation computes in f32 (f64 in the reference) and rounds to `c` once, when it stores. What
// a later operation could recompute is computed from the rounded value: GELU from the stored pre-activation,
// the layernorm from the stored residual, so that recomputation and pipeline boundaries change no bit.
// Accumulation.  Gradients of weights are always added to (beta = 1); AdamW clears them.  Everything else is
// overwritten.  Results never depend on the number of threads or blocks.
// Shapes.  N = B*T rows of tokens, row r = b*T + t.  "[N, C]" operands may have a row stride.  "heads"
// operands are [B, T, H, D] views with any stride (Tensor::heads).  A tensor in brackets [x] may be absent.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace hearth {

// Scalars of the current step.  They lie in device memory so that nothing in a step needs the host.
struct StepParams {
  int64_t first_sample = 0;  // the run's index of the first sample of the step
  double learning_rate = 0;
  double clip_scale = 1;        // gradients are multiplied by this inside AdamW
  double loss_scale = 1;        // 1 / valid tokens of the whole step: the one division (loss = sum / N)
  double bias_correction1 = 1;  // 1 - beta1^t
  double bias_correction2 = 1;  // 1 - beta2^t
};

// Inverted dropout with a mask that is a function of global indices (base/philox.h): element (t, channel) of
// sample s uses block (t*C + channel)/4, lane (t*C + channel)%4 of instance s, and is kept when its 32 bits
// are >= dropout_threshold(probability); kept elements are multiplied by 1 / (1 - probability).
enum class DropoutSite : uint32_t { embedding = 0, attention = 1, mlp = 2 };
struct Dropout {
  double probability = 0;  // 0 = none: nothing else is read
  uint64_t seed = 0;
  uint32_t layer = 0;
  DropoutSite site = DropoutSite::embedding;
  // Row r of the operand is row first_row + r of a microbatch whose samples have T = time rows each, and
  // whose first one is sample step.first_sample + sample_offset.
  int64_t sample_offset = 0;
  int64_t time = 1;
  int64_t first_row = 0;  // above 0: the operand is a shard of the microbatch's rows
  uint64_t stream() const { return uint64_t{layer} * 4 + static_cast<uint32_t>(site); }
};
inline uint32_t dropout_threshold(double probability) {
  return static_cast<uint32_t>(probability * 4294967296.0);
}

enum class Activation : uint8_t { none, gelu };

// One run of elements that AdamW updates alike: flat, equal lengths.
struct AdamWSegment {
  Tensor master;   // m
  Tensor moment1;  // m
  Tensor moment2;  // m
  Tensor grad;     // m; cleared
  Tensor weight;   // c; receives the rounded master; absent when the compute weights are the master weights
  bool decay = false;
};
struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// The part of the vocabulary that a logits tensor covers.
struct VocabShard {
  int64_t start = 0;  // global id of column 0
  int64_t valid = 0;  // columns [0, valid) are real; the rest is padding, excluded from the softmax
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Where the step's scalars are; must be set before any operation that reads them.  Device memory.
  void set_step_params(const StepParams* device_address) { step_ = device_address; }

  // ---- linear layers

  // y = act(x w^T + [bias]);  x [N, K] c, w [O, K] c, bias [O] c, y [N, O] c.
  // With gelu: pre = round(x w^T + bias) is stored in [pre] [N, O] c when present, and y = gelu(pre).
  virtual void linear_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                              Activation activation = Activation::none, const Tensor& pre = {}) = 0;
  // dx = dy w, with [pre]: dx = (dy w) * gelu'(pre);  dy [N, O] c, w [O, K] c, dx [N, K] c, pre [N, K] c.
  virtual void linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx,
                                     const Tensor& pre = {}) = 0;
  // dw += dy^T x, [dbias] += column sums of dy;  dy [N, O] c, x [N, K] c, dw [O, K] m, dbias [O] m.
  virtual void linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw,
                                      const Tensor& dbias) = 0;
  // y = gelu(pre), both [N, O] c: what linear_forward would have stored.  GELU is the tanh form
  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016).
  virtual void gelu_forward(const Tensor& pre, const Tensor& y) = 0;

  // ---- residual stream and layernorm

  struct ResidualNorm {
    Tensor residual;      // [N, C] c: input
    Tensor branch;        // [N, C] c: output of a row-parallel linear, summed over its group; may be absent
    Tensor branch_bias;   // [C] c; may be absent
    Dropout dropout;      // of the branch
    Tensor residual_out;  // [N, C] c: residual + dropout(branch + branch_bias); may be the same memory as
                          // residual; not written when branch is absent
    Tensor weight;        // [C] c; absent: only the sum is computed, nothing is normalised
    Tensor bias;          // [C] c; may be absent
    Tensor normed;        // [N, C] c: (x - mean) * rstd * weight + bias for x = the rounded residual_out
    Tensor mean;          // [N] m
    Tensor rstd;          // [N] m: 1 / sqrt(variance + eps)
    double eps = 1e-5;
  };
  virtual void residual_norm_forward(const ResidualNorm& p) = 0;
  // normed from stored x [N, C] c, mean and rstd: the same bits as residual_norm_forward gave.
  virtual void norm_apply(const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                          const Tensor& bias, const Tensor& normed) = 0;
  struct ResidualNormBackward {
    Tensor d_normed;    // [N, C] c; absent (with weight): no norm was applied
    Tensor d_residual;  // [N, C] c: in: gradient of residual_out from above (read only if `accumulate`);
                        // out: the whole gradient of residual_out, which is also that of residual
    bool accumulate = true;
    Tensor x;           // [N, C] c: residual_out of the forward pass
    Tensor mean, rstd;  // [N] m
    Tensor weight;      // [C] c
    Tensor d_weight;    // [C] m +=
    Tensor d_bias;      // [C] m += ; may be absent
    Tensor d_branch;    // [N, C] c: dropout mask applied to d_residual (the rounded value); absent when there
                        // was no branch; equal to d_residual.data without dropout (then nothing is copied)
    Tensor d_branch_bias;  // [C] m += column sums of d_branch; may be absent
    Dropout dropout;
  };
  virtual void residual_norm_backward(const ResidualNormBackward& p) = 0;

  // ---- attention

  // Causal softmax(q k^T / sqrt(D)) v, never stored as T x T.  q, out [B, T, H, D] c heads;
  // k, v [B, T, Hkv, D], H a multiple of Hkv;
  // lse [B, H, T] m = natural log of the sum of exp of the scaled scores.
  virtual void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                 const Tensor& lse) = 0;
  // dq, dk, dv are overwritten.  scratch [B, H, T] m holds rowsum(dout * out).
  virtual void attention_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                  const Tensor& dout, const Tensor& lse, const Tensor& scratch,
                                  const Tensor& dq, const Tensor& dk, const Tensor& dv) = 0;
  // One new token per row: q, out [B, 1, H, D]; attends to the first `length` positions of the cache
  // k, v [B, >= length, Hkv, D] (the new token's own key is at length - 1).
  virtual void attention_decode(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                                const Tensor& out) = 0;

  // ---- embeddings

  // out row r = table row (tokens[r] - vocab_start), or 0 when that is outside the table (another shard has
  // it).  tokens [N] i32, table [V, C] c, out [N, C] c.
  virtual void embed_tokens(const Tensor& tokens, const Tensor& table, int64_t vocab_start,
                            const Tensor& out) = 0;
  // dtable row += d row, in the order of r; tokens outside the table are skipped.
  // d [N, C] c, dtable [V, C] m.
  virtual void embed_tokens_backward(const Tensor& tokens, const Tensor& d, int64_t vocab_start,
                                     const Tensor& dtable) = 0;
  // x = dropout(x + table[positions]), in place.
  // x [N, C] c, positions [N] i32, table [Tmax, C] c (may be absent).
  virtual void embed_positions(const Tensor& x, const Tensor& positions, const Tensor& table,
                               const Dropout& dropout) = 0;
  // d = mask applied to d, in place; then dtable[positions] += d in the order of r
  // (dtable [Tmax, C] m or absent).
  virtual void embed_positions_backward(const Tensor& d, const Tensor& positions, const Dropout& dropout,
                                        const Tensor& dtable) = 0;

  // ---- loss

  // Per-row softmax statistics of logits [N, V] c over the valid columns: stats [3, N] m with rows
  // max | sum of exp(x - max) | logit of the target (0 when the target is not in this shard or is -1).
  virtual void cross_entropy_statistics(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                                        const Tensor& stats) = 0;
  // Rescales the sums to a maximum over all shards: sum *= exp(max - global_max), max = global_max [N] m.
  virtual void cross_entropy_rescale(const Tensor& stats, const Tensor& global_max) = 0;
  // losses[r] = log(sum) + max - target logit (0 for target -1), [N] m; and when [dlogits] is present
  // dlogits = (exp(x - max) / sum - onehot) * loss_scale of the step (0 for target -1 and for padding),
  // [N, V] c, may be the same memory as logits.
  virtual void cross_entropy_finish(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                                    const Tensor& stats, const Tensor& losses, const Tensor& dlogits) = 0;

  // ---- optimizer and element-wise

  // total[0] f64 += sum of x^2, x m or c of any shape, contiguous.
  virtual void sum_of_squares(const Tensor& x, const Tensor& total) = 0;
  // total[0] f64 += sum of x, x m.
  virtual void sum(const Tensor& x, const Tensor& total) = 0;
  // Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), for each segment:
  //   g = grad * clip_scale;  m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
  //   update = m / bias_correction1 / (sqrt(v / bias_correction2) + eps) + [decay] weight_decay * master
  //   master -= lr * update
  // then weight = round(master) and grad = 0.
  virtual void adamw(std::span<const AdamWSegment> segments, const AdamWConfig& config) = 0;
  // out = a + b (all of one type and shape, contiguous; out may be a or b).
  virtual void add(const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  // Converts between floating types (cuda: between c and m); contiguous, equal element counts.
  virtual void cast(const Tensor& from, const Tensor& to) = 0;
  virtual void copy(const Tensor& from, const Tensor& to) = 0;  // same type, contiguous
  virtual void fill_zero(const Tensor& x) = 0;                  // contiguous

 protected:
  const StepParams* step_ = nullptr;
};

}  // namespace hearth
