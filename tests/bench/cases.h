// The list of cases: every operation of a training step, and those of other steps (decode, recomputation,
// tensor parallelism), at the shapes of a model.
#pragma once

#include <string>
#include <vector>

#include "bench/case.h"
#include "model/activations.h"

namespace hearth::bench {

// The sizes of one microbatch.
struct StepShape {
  std::string name;
  ModelConfig model;
  int64_t batch = 1;  // sequences of model.context tokens
  Precision precision = Precision::bf16;
  size_t logits_bytes = StageOptions::gpu_logits_bytes;

  int64_t tokens() const { return batch * model.context; }
  DType compute() const { return compute_dtype(precision); }
  // Tokens whose logits are computed at once.
  int64_t chunk() const;
  // Of the model with its padded vocabulary.
  int64_t parameters() const;
};

// "124M" and "1558M", GPT-2, with the microbatch of the tables: 64 and 16 sequences of 1024 tokens.
StepShape step_shape(const std::string& name, Precision precision);

std::vector<Case> linear_cases(const StepShape& s);
std::vector<Case> attention_cases(const StepShape& s);
std::vector<Case> row_cases(const StepShape& s);        // residual_norm, embedding, cross-entropy
std::vector<Case> optimizer_cases(const StepShape& s);  // and element-wise operations
// All of them, in the order of a step.
std::vector<Case> all_cases(const StepShape& s);

// What the ceilings are measured with: y = x w^T of [edge, edge], and a copy of `bytes`.
Case product_ceiling(int64_t edge, Precision precision);
Case copy_ceiling(int64_t bytes);

}  // namespace hearth::bench
