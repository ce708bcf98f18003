// What a stage keeps between forward and backward, and what it needs only for a moment.
//
// Activations of a microbatch lie in its slot; the working tensors are shared by all slots and layers.  Which
// tensor is kept and which is shared depends on the recompute policy alone.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/parameters.h"
#include "model/sharding.h"
#include "tensor/arena.h"

namespace hearth {

// The size of a stage's work.
struct StageOptions {
  int64_t first_layer = 0;
  int64_t layers = 0;  // blocks of this stage
  int64_t rows = 1;    // the largest microbatch, in sequences
  int64_t time = 1;    // the longest sequence
  int slots = 1;       // microbatches in flight
  Precision precision = Precision::fp32;
  Recompute recompute = Recompute::none;
  bool training = true;  // false: forward only
  uint64_t seed = 0;     // of the dropout masks
  TensorShard shard;     // place on the tensor-parallel axis
  size_t logits_bytes =
      size_t{64} << 20;  // the loss is computed in chunks of tokens whose logits fit in this

  int64_t tokens() const { return rows * time; }
};

// One block.  C channels; of this rank: F width of the MLP, H heads, Hkv key/value heads.
struct LayerActivations {
  Tensor residual;      // [N, C] input of the block
  Tensor mean1, rstd1;  // [N]
  Tensor normed1;       // [N, C]
  Tensor qkv;           // [N, (H + 2 Hkv) D]: q | k | v
  Tensor lse;           // [B*H*T]
  Tensor attention;     // [N, C]
  Tensor residual_mid;  // [N, C] after attention
  Tensor mean2, rstd2;  // [N]
  Tensor normed2;       // [N, C]
  Tensor pre;           // [N, F] before GELU
  Tensor gelu;          // [N, F]
};

// One microbatch in flight.
struct Slot {
  Tensor tokens, targets, positions;  // [N] i32
  std::vector<LayerActivations> layers;
  Tensor residual_final;          // [N, C] output of the last block
  Tensor mean_final, rstd_final;  // [N]
  Tensor d_normed_final;          // [N, C] gradient that the loss left
};

// Shared by everything that runs on the stage, one thing at a time.
struct Workspace {
  Tensor branch;        // [N, C] output of a row-parallel linear; also the gradient of a normed tensor
  Tensor normed_final;  // [N, C]
  Tensor d_residual;    // [N, C]
  Tensor d_branch;      // [N, C]; the same as d_residual without dropout
  Tensor d_output;      // [N, C] what a later stage sent back; absent on the last stage
  Tensor d_attention;   // [N, C]
  Tensor d_qkv;         // like qkv
  Tensor d_pre;         // [N, F]
  Tensor delta;         // [B*H*T]
  Tensor logits;        // [chunk, V]
  Tensor stats;         // [3, chunk]
  Tensor global_max;    // [chunk]
  Tensor losses;        // [chunk]
};

struct StageMemory {
  std::vector<Slot> slots;
  Workspace work;
};

// Tokens of one loss chunk.
int64_t loss_chunk(const ModelConfig& model, const StageOptions& options);

// Takes everything a stage needs, in the same order every time: measuring and carving agree by construction.
StageMemory carve_stage(const ModelConfig& model, const StageOptions& options, Carver& activations,
                        Carver& scratch);

// Adds the activations and scratch of a stage to a plan.
void plan_stage(const ModelConfig& model, const StageOptions& options, MemoryPlan& plan);

}  // namespace hearth
