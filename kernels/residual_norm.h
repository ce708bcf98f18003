// Launchers of kernels/residual_norm.cu.
// The mathematics of each is the operation of the same name in device/ops.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/ops.h"
#include "kernels/rows.h"

typedef struct CUstream_st* cudaStream_t;

namespace hearth::kernels {

constexpr int64_t max_norm_channels = 8192;

// Absent operands are default-constructed.  `rows` = N, `channels` = C, a multiple of 8 up to
// max_norm_channels.
struct ResidualNorm {
  int64_t rows = 0, channels = 0;
  Rows<const bf16> residual;
  Rows<const bf16> branch;            // may be absent
  const bf16* branch_bias = nullptr;  // may be absent
  Rows<bf16> residual_out;            // may be residual
  const bf16* weight = nullptr;       // absent: only the sum is computed
  const bf16* bias = nullptr;         // may be absent
  Rows<bf16> normed;
  float* mean = nullptr;
  float* rstd = nullptr;
  float eps = 1e-5f;
};
// `step` is device memory, read only with dropout.
void residual_norm_forward(const ResidualNorm& p, const Dropout& dropout, const StepParams* step,
                           cudaStream_t stream);

void norm_apply(Rows<const bf16> x, const float* mean, const float* rstd, const bf16* weight,
                const bf16* bias /* may be null */, Rows<bf16> normed, int64_t rows, int64_t channels,
                cudaStream_t stream);

struct ResidualNormBackward {
  int64_t rows = 0, channels = 0;
  Rows<const bf16> d_normed;  // absent with weight: no norm was applied
  Rows<bf16> d_residual;      // in (if accumulate) and out
  bool accumulate = true;
  Rows<const bf16> x;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const bf16* weight = nullptr;
  float* d_weight = nullptr;       // +=
  float* d_bias = nullptr;         // += ; may be absent
  Rows<bf16> d_branch;             // may be absent; may be d_residual when there is no dropout
  float* d_branch_bias = nullptr;  // += ; may be absent
};
// `workspace`: residual_norm_backward_workspace_bytes() of device memory, 16-byte aligned, contents ignored.
size_t residual_norm_backward_workspace_bytes(int64_t rows, int64_t channels);
void residual_norm_backward(const ResidualNormBackward& p, const Dropout& dropout, const StepParams* step,
                            void* workspace, cudaStream_t stream);

}  // namespace hearth::kernels
