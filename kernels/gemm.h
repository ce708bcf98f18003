// Matrix products of linear layers: one interface, whatever engine computes them.
//
// A linear layer y = x w^T with x [N, K], w [O, K], y [N, O] needs three products C [m, n] = sum over k:
//
//   Product           m  n  k   A          B          C                epilogue
//   forward           N  O  K   x [m, k]   w [n, k]   y               + bias; gelu
//   input_gradient    N  K  O   dy [m, k]  w [k, n]   dx              * gelu'(pre)
//   weight_gradient   O  K  N   dy [k, m]  x [k, n]   dw += fp32      column sums of dy += fp32
//
// All matrices are stored row after row with the shapes in brackets and any row stride.  A and B are bf16,
// sums are fp32, C is bf16 but for dw.  Everything is deterministic: the bits depend on the arguments and on
// the engine alone, which the arguments and the GPU's generation choose.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

typedef struct CUstream_st* cudaStream_t;

namespace hearth::kernels {

enum class Product : uint8_t { forward, input_gradient, weight_gradient };

enum class GemmTile : uint8_t { automatic, small, large };

// Addresses are multiples of 16; row strides, and every extent along which a row runs, multiples of 8.  So N,
// the number of tokens, may be any number.
struct GemmArgs {
  Product product = Product::forward;
  int64_t m = 0, n = 0, k = 0;
  const bf16* a = nullptr;
  const bf16* b = nullptr;
  int64_t a_stride = 0, b_stride = 0;  // elements from row to row

  // forward, input_gradient: c is overwritten.
  bf16* c = nullptr;
  int64_t c_stride = 0;
  // forward: + bias [n], may be absent.  With gelu, c = gelu(pre), where pre = A B + bias rounded to bf16,
  // which is stored in `pre` [m, n] unless that is absent.
  const bf16* bias = nullptr;
  bool gelu = false;
  bf16* pre = nullptr;
  // input_gradient: c = A B * gelu'(factor_pre), with factor_pre [m, n]; absent: c = A B.
  const bf16* factor_pre = nullptr;
  int64_t pre_stride = 0;  // of pre and factor_pre

  // weight_gradient: accumulator += A^T B with row stride c_stride, and column_sums [m] += sum of A's rows,
  // which may be absent.
  float* accumulator = nullptr;
  float* column_sums = nullptr;

  // 0 or automatic: chosen by shape.  For tests and measurements; a given tile means the mma.sync engine.
  GemmTile tile = GemmTile::automatic;
  int splits = 0;  // weight_gradient: parts of k that are summed by different blocks
};

// By the engine that suits the shape and the current GPU.  The workspace, a multiple of 16, is read and
// written only between the start and the end of the call's work on the stream; its size depends on the shape
// and the GPU, not on addresses, but for whether column_sums is absent.
size_t gemm_workspace_bytes(const GemmArgs& args);
void gemm(const GemmArgs& args, void* workspace, cudaStream_t stream);

// The mma.sync engine (gemm_sm80.cu), for every GPU of sm_80 and up.
size_t gemm_sm80_workspace_bytes(const GemmArgs& args);
void gemm_sm80(const GemmArgs& args, void* workspace, cudaStream_t stream);

// The wgmma engine (gemm_sm90.cu), for sm_90 alone; it has one tile, whatever args.tile says.  `supports`:
// TMA can describe the matrices, which it can unless one is empty or an extent is 2^30 or more.  `pays`:
// there are enough tiles to be faster than the mma.sync engine.
bool gemm_sm90_supports(const GemmArgs& args);
bool gemm_sm90_pays(const GemmArgs& args);
size_t gemm_sm90_workspace_bytes(const GemmArgs& args);
void gemm_sm90(const GemmArgs& args, void* workspace, cudaStream_t stream);

// y = gelu(pre), the bits that a forward product with gelu stores: for recomputation.
void gelu_forward(const bf16* pre, int64_t pre_stride, bf16* y, int64_t y_stride, int64_t rows,
                  int64_t columns, cudaStream_t stream);

}  // namespace hearth::kernels
