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
  bool training = true;   // false: forward only
  uint64_t seed = 0;      // of the dropout masks
  TensorShard shard;      // place on the tensor-parallel axis
  bool sequence = false;  // the residual stream is split by rows over that axis (model/tensor_parallel.h)
  size_t logits_bytes = host_logits_bytes;  // the loss comes in chunks of tokens whose logits fit in this

  // A GPU's weight gradient of the head reads and writes its fp32 sums for every chunk, which hides behind
  // the products only with a few thousand tokens: 4096 of GPT-2's.
  // A CPU is faster with logits near its caches.
  static constexpr size_t host_logits_bytes = size_t{64} << 20;
  static constexpr size_t gpu_logits_bytes = size_t{400} << 20;

  int64_t tokens() const { return rows * time; }
  // Rows of the residual stream that the rank holds.
  int64_t stream_rows() const { return sequence ? tokens() / shard.size : tokens(); }
};

// One block.  N tokens, C channels; of this rank: F width of the MLP, H heads, Hkv key/value heads, n rows of
// the residual stream (n = N without sequence parallelism).
struct LayerActivations {
  Tensor residual;      // [n, C] input of the block
  Tensor mean1, rstd1;  // [n]
  Tensor normed1;       // [n, C]
  Tensor qkv;           // [N, (H + 2 Hkv) D]: q | k | v
  Tensor lse;           // [B*H*T]
  Tensor attention;     // [N, H D]
  Tensor residual_mid;  // [n, C] after attention
  Tensor mean2, rstd2;  // [n]
  Tensor normed2;       // [n, C]
  Tensor pre;           // [N, F] before GELU
  Tensor gelu;          // [N, F]
};

// One microbatch in flight.
struct Slot {
  Tensor tokens, targets, positions;  // [N] i32
  std::vector<LayerActivations> layers;
  Tensor residual_final;          // [n, C] output of the last block
  Tensor mean_final, rstd_final;  // [n]
  Tensor d_normed_final;          // [n, C] gradient that the loss left
};

// Shared by everything that runs on the stage, one thing at a time.
struct StageWorkspace {
  Tensor whole;         // [N, C] all rows of one of the others; absent without sequence parallelism
  Tensor branch;        // [n, C] output of a row-parallel linear; also the gradient of a normed tensor
  Tensor normed_final;  // [n, C]
  Tensor d_residual;    // [n, C]
  Tensor d_branch;      // [n, C]; the same as d_residual without dropout
  Tensor d_output;      // [n, C] what a later stage sent back; absent on the last stage
  Tensor d_attention;   // [N, H D]
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
  StageWorkspace work;
};

// Tokens of one loss chunk: whole tiles of 128 rows, where there are any.
int64_t loss_chunk(const ModelConfig& model, const StageOptions& options);

// Takes everything a stage needs, in the same order every time: measuring and carving agree by construction.
StageMemory carve_stage(const ModelConfig& model, const StageOptions& options, Carver& activations,
                        Carver& scratch);

// Adds the activations and scratch of a stage to a plan.
void plan_stage(const ModelConfig& model, const StageOptions& options, MemoryPlan& plan);
// Adds what the operations of a stage work on, but for sums.
void add_op_sizes(const ModelConfig& model, const StageOptions& options, OpSizes& sizes);

}  // namespace hearth
