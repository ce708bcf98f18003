// Stage: the forward and backward pass of a contiguous range of blocks, written out by hand.
//
// The first stage also embeds tokens; the last one also runs the LM head and the loss.  A single process has
// one stage with every block.  The order of operations is the paper's:
//
//   x = dropout(wte[token] + wpe[position])
//   for each block:  x += dropout(proj(attention(qkv(norm1(x)))))
//                    x += dropout(mlp.proj(gelu(mlp.fc(norm2(x)))))
//   loss = cross_entropy(head(norm_f(x)))
//
// Adding a branch to x and normalising the sum for the next branch are one operation (Ops::residual_norm).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "device/ops.h"
#include "model/activations.h"
#include "model/parameters.h"
#include "model/tensor_parallel.h"

namespace hearth {

// One microbatch on the device.
struct Microbatch {
  int64_t sample_offset = 0;  // first sample, counted from the first sample of the step (StepParams)
  int64_t rows = 0;           // B
  int64_t time = 0;           // T
  bool train = true;          // dropout is on and backward will follow; false: only the loss is wanted
  bool loss = true;           // false: not even that, but logits()
};

// The tensors of a linear layer or a norm, and their gradients.
struct Affine {
  Tensor weight, bias, d_weight, d_bias;
};

struct BlockWeights {
  Affine norm1, qkv, proj, norm2, fc, mlp_proj;
};

// Views of the parameters of block `layer` (global index); q, k and v as the one fused tensor that they are.
BlockWeights block_weights(const ParameterSet& parameters, const LocalShape& local, int64_t layer);
// Views of the parameters called PREFIX.weight and PREFIX.bias (absent tensors where there are none).
Affine affine(const ParameterSet& parameters, const std::string& prefix);

class Stage {
 public:
  // `parameters` must hold the parameters of these blocks (and of embedding and head where the stage has
  // them) and outlive the stage.
  Stage(const ModelConfig& model, const StageOptions& options, Device& device, ParameterSet& parameters,
        Communicator& tensor_group);

  bool first() const { return options_.first_layer == 0; }
  bool last() const { return options_.first_layer + options_.layers == model_.layers; }

  // Copies inputs to a slot: rows * time ids each; targets may be empty.
  // Positions are 0 .. time-1 in each row.
  void set_input(int slot, const Microbatch& batch, std::span<const int32_t> tokens,
                 std::span<const int32_t> targets);

  // The residual stream that enters a later stage's slot and leaves an earlier stage's, [N, C]; with sequence
  // parallelism this rank's rows of it.
  Tensor input(int slot, const Microbatch& batch);
  Tensor output(int slot, const Microbatch& batch);

  // Runs the blocks.  On the last stage it then adds the sum of the token losses to loss_total(), and when
  // training computes the gradient of the loss down to the output of the final norm
  // and the head's weight gradient.
  void forward(int slot, const Microbatch& batch);

  // On the last stage, behind forward() of a microbatch without loss: the logits after token `row` of it, of
  // this rank's part of the vocabulary: [1, V].  Valid until the next forward().
  Tensor logits(const Microbatch& batch, int64_t row);

  // Backward of the same microbatch; adds to every weight gradient.  A stage that is not the last one reads
  // the gradient of output() from d_output(); one that is not the first leaves the gradient of input() in
  // d_input(). `layer_done(l)` is called when every gradient of block l and the later ones is complete (may
  // be empty).
  void backward(int slot, const Microbatch& batch, const std::function<void(int64_t)>& layer_done = {});
  Tensor d_output(const Microbatch& batch);
  Tensor d_input(const Microbatch& batch);

  // f64 [1]: the sum of token losses since clear_loss().
  const Tensor& loss_total() const { return loss_total_; }
  void clear_loss();

 private:
  // A residual stream with a branch that has not been added yet.
  struct Stream {
    Tensor residual;
    Tensor branch;  // absent: the residual is complete
    Tensor branch_bias;
    Dropout dropout;
  };

  void embed(const Slot& slot, const Microbatch& batch, const Tensor& x);
  void embed_backward(const Slot& slot, const Microbatch& batch);
  Stream block_forward(int64_t block, const LayerActivations& a, const Stream& stream,
                       const Microbatch& batch);
  void attention_half(int64_t block, const LayerActivations& a, const Microbatch& batch);
  void mlp_hidden(int64_t block, const LayerActivations& a, const Microbatch& batch);
  void recompute(int64_t block, const LayerActivations& a, const Microbatch& batch);
  void block_backward(int64_t block, const LayerActivations& a, const Microbatch& batch);
  void mlp_backward(int64_t block, const LayerActivations& a, const Microbatch& batch, const Tensor& d_branch,
                    const Tensor& d_normed);
  void attention_half_backward(int64_t block, const LayerActivations& a, const Microbatch& batch,
                               const Tensor& d_branch, const Tensor& d_normed);
  void head(const Slot& slot, const Microbatch& batch, const Tensor& normed);
  void head_chunk(const Tensor& targets, const Tensor& normed, const Tensor& d_normed);
  void output_backward(const Slot& slot, const Microbatch& batch);

  // Completes a stream into x and normalises it: a thin form of Ops::residual_norm_forward.
  void complete(const Stream& stream, const Tensor& x, const Affine& norm, const Tensor& normed,
                const Tensor& mean, const Tensor& rstd);
  Dropout dropout(int64_t block, DropoutSite site, const Microbatch& batch) const;
  LayerActivations view(const LayerActivations& a, const Microbatch& batch) const;
  // The rows of a tensor of the residual stream that this rank has of a microbatch.
  Tensor stream_rows(const Tensor& t, const Microbatch& batch) const;
  // [N, C] of all rows, for entering and leaving tensor-parallel regions; absent without sequence
  // parallelism.
  Tensor whole(const Microbatch& batch) const;
  Tensor d_residual(const Microbatch& batch) const;
  Tensor d_branch(const Microbatch& batch) const;

  ModelConfig model_;
  LocalShape local_;
  StageOptions options_;
  Device& device_;
  Ops& ops_;
  TensorParallel tp_;
  Buffer activation_buffer_, scratch_buffer_, loss_buffer_;
  StageMemory memory_;
  Tensor loss_total_;
  std::vector<BlockWeights> blocks_;
  Affine token_embedding_, position_embedding_, final_norm_, head_;
  std::vector<int32_t> host_positions_;
};

}  // namespace hearth
