// Launchers of kernels/elementwise.cu, and what holds for the launchers in every header here: plain C++,
// called by the CUDA device (src/device/cuda).
//
// Pointers are device memory; sizes are in elements; everything is ordered on `stream` and returns at once. A
// launcher check()s shapes and alignment, which its caller guarantees, and throws Error(device) when the GPU
// refuses the launch.  Nothing here allocates: where a kernel needs room,
// `..._workspace_bytes` says how much.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

typedef struct CUstream_st* cudaStream_t;

namespace hearth::kernels {

// Addresses are multiples of 16 unless stated; any n.

void cast(const float* from, bf16* to, int64_t n, cudaStream_t stream);
void cast(const bf16* from, float* to, int64_t n, cudaStream_t stream);
// out = a + b; out may be a or b.
void add(const float* a, const float* b, float* out, int64_t n, cudaStream_t stream);
void add(const bf16* a, const bf16* b, bf16* out, int64_t n, cudaStream_t stream);
// Any type and alignment.
void copy_bytes(const void* from, void* to, size_t bytes, cudaStream_t stream);
void fill_zero(void* x, size_t bytes, cudaStream_t stream);
// *total += sum of x or of x^2, in an order that depends on n alone.
size_t sum_workspace_bytes(int64_t n);
void sum(const float* x, int64_t n, double* total, void* workspace, cudaStream_t stream);
void sum_of_squares(const float* x, int64_t n, double* total, void* workspace, cudaStream_t stream);
void sum_of_squares(const bf16* x, int64_t n, double* total, void* workspace, cudaStream_t stream);

}  // namespace hearth::kernels
