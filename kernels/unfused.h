// What the GEMM engines do in their epilogues, as kernels of their own: for products of a library that has no
// algorithm with the epilogue (src/device/cuda/cublaslt_gemm.cpp).
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

typedef struct CUstream_st* cudaStream_t;

namespace hearth::kernels {

// Addresses are multiples of 16; columns and row strides multiples of 8.

// d *= gelu'(pre), both [rows, columns].
void multiply_gelu_derivative(bf16* d, int64_t d_stride, const bf16* pre, int64_t pre_stride, int64_t rows,
                              int64_t columns, cudaStream_t stream);
// sums[c] += sum of column c of x [rows, columns], in an order that depends on rows alone.
void add_column_sums(const bf16* x, int64_t stride, int64_t rows, int64_t columns, float* sums,
                     cudaStream_t stream);

}  // namespace hearth::kernels
