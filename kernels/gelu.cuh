// GELU in its tanh form (Hendrycks and Gimpel 2016) and its derivative, for every kernel that applies them.
//
//   gelu(x) = x/2 (1 + tanh u) = x s,   u = sqrt(2/pi) (x + 0.044715 x^3),   s = 1 / (1 + exp(-2u))
//   gelu'(x) = s + 2 x s (1 - s) du/dx
//
// One ex2 and one rcp each.  The sigmoid form loses no digits where tanh u is near -1.  Products and sums are
// fused by hand, so that the fused GEMM and the recomputing kernel give the same bits.
#pragma once

#include "kernels/ptx.cuh"

namespace hearth {

constexpr float gelu_a = 0.044715f;
constexpr float gelu_c = 0.79788456080286536f;  // sqrt(2/pi)

// 1 / (1 + exp(-2u)), given x and x^2
__device__ __forceinline__ float gelu_sigmoid(float x, float x2) {
  constexpr float scale = -2 * log2_e * gelu_c;
  return ptx::rcp(1 + ptx::ex2(x * fmaf(scale * gelu_a, x2, scale)));
}

__device__ __forceinline__ float gelu(float x) {
  return x * gelu_sigmoid(x, x * x);
}

// Beyond +-16 it is 0 or 1 exactly, which the clamp keeps (x^2 could overflow); NaN stays NaN.
__device__ __forceinline__ float gelu_derivative(float x) {
  x = x < -16 ? -16.0f : x > 16 ? 16.0f : x;
  const float x2 = x * x;
  const float s = gelu_sigmoid(x, x2);
  return fmaf(2 * x * fmaf(3 * gelu_c * gelu_a, x2, gelu_c), s * (1 - s), s);
}

}  // namespace hearth
