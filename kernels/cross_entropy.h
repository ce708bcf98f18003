// Launchers of kernels/cross_entropy.cu.
// The mathematics of each is the operation of the same name in device/ops.h.
#pragma once

#include <cstdint>

#include "device/ops.h"
#include "kernels/rows.h"

typedef struct CUstream_st* cudaStream_t;

namespace hearth::kernels {

// The rows of the operation's stats [3, N].
struct CrossEntropyStatistics {
  float* max = nullptr;
  float* sum = nullptr;     // of exp(x - max)
  float* target = nullptr;  // logit of the target, 0 when it is not here
};

// logits [rows, columns], columns a multiple of 8, of which shard.valid, any number, are real.
void cross_entropy_statistics(Rows<const bf16> logits, const int32_t* targets, const VocabShard& shard,
                              const CrossEntropyStatistics& stats, int64_t rows, int64_t columns,
                              cudaStream_t stream);
void cross_entropy_rescale(const CrossEntropyStatistics& stats, const float* global_max, int64_t rows,
                           cudaStream_t stream);
// dlogits may be absent, and may be the memory of logits.  `step` is device memory, read only for dlogits.
void cross_entropy_finish(Rows<const bf16> logits, const int32_t* targets, const VocabShard& shard,
                          const CrossEntropyStatistics& stats, float* losses, Rows<bf16> dlogits,
                          const StepParams* step, int64_t rows, int64_t columns, cudaStream_t stream);

}  // namespace hearth::kernels
