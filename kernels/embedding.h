// Launchers of kernels/embedding.cu.  The mathematics of each is the operation
// of the same name in device/ops.h.
#pragma once

#include <cstdint>

#include "device/ops.h"
#include "kernels/rows.h"

typedef struct CUstream_st* cudaStream_t;

namespace hearth::kernels {

// `channels` is a multiple of 8.  `tokens` and `positions` are contiguous.
void embed_tokens(const int32_t* tokens, Rows<const bf16> table, int64_t vocab_start, int64_t vocab_rows,
                  Rows<bf16> out, int64_t rows, int64_t channels, cudaStream_t stream);
void embed_tokens_backward(const int32_t* tokens, Rows<const bf16> d, int64_t vocab_start, Rows<float> dtable,
                           int64_t vocab_rows, int64_t rows, int64_t channels, cudaStream_t stream);

// `table` may be absent; then `positions` is not read.  `step` is device memory, read only with dropout.
// Positions must lie in the table: nothing can check them here, others are skipped.
void embed_positions(Rows<bf16> x, const int32_t* positions, Rows<const bf16> table, int64_t table_rows,
                     int64_t rows, int64_t channels, const Dropout& dropout, const StepParams* step,
                     cudaStream_t stream);
void embed_positions_backward(Rows<bf16> d, const int32_t* positions, Rows<float> dtable, int64_t table_rows,
                              int64_t rows, int64_t channels, const Dropout& dropout, const StepParams* step,
                              cudaStream_t stream);

}  // namespace hearth::kernels
