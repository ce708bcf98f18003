// Elementary functions for vectorised loops: no branch, no table, no library call.
#pragma once

#include <bit>
#include <cstdint>

namespace hearth::cpu {

// e^x for x up to 88, relative error below 3e-7.  What is below 1.2e-38 becomes 1.2e-38; NaN stays NaN.  Cody
// and Waite reduction to |r| <= ln(2)/2, then a polynomial of degree 6.
[[gnu::always_inline]] inline float exp_fast(float x) {
  constexpr float log2_e = 1.44269504088896341f;
  constexpr float ln2_high = 0.693145751953125f;
  constexpr float ln2_low = 1.42860682030941723212e-6f;
  constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * log2_e + round_magic;
  const float n = shifted - round_magic;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The low bits of `shifted` hold n; 2^n is n + 127 in the exponent.
  constexpr int32_t bias = 127 - std::bit_cast<int32_t>(round_magic);
  return p * std::bit_cast<float>((std::bit_cast<int32_t>(shifted) + bias) << 23);
}

// 1 / x for positive x in [2^-120, 2^120], relative error below 2e-7: three steps of Newton's method from a
// guess that subtracts exponents.  Several times faster than a vector division.
[[gnu::always_inline]] inline float reciprocal(float x) {
  float y = std::bit_cast<float>(0x7ef311c7 - std::bit_cast<int32_t>(x));
  y = y * (2.0f - x * y);
  y = y * (2.0f - x * y);
  y = y * (2.0f - x * y);
  return x != x ? x : y;
}

// GELU in its tanh form (Hendrycks and Gimpel 2016).  With u = sqrt(2/pi) (x + 0.044715 x^3) and e =
// exp(-2u), (1 + tanh u) / 2 is s = 1 / (1 + e), so gelu(x) = x s; and s (1 - s) is e s^2, which loses no
// digits.
constexpr float gelu_two_c = 2 * 0.79788456080286535588f;
constexpr float gelu_a = 0.044715f;

// exp(-2u), at most e^80.
[[gnu::always_inline]] inline float gelu_exponential(float x) {
  const float minus_two_u = -gelu_two_c * (x + gelu_a * x * x * x);
  return exp_fast(minus_two_u > 80.0f ? 80.0f : minus_two_u);
}

[[gnu::always_inline]] inline float gelu(float x) {
  return x * reciprocal(1.0f + gelu_exponential(x));
}

[[gnu::always_inline]] inline float gelu_derivative(float x) {
  const float e = gelu_exponential(x);
  const float s = reciprocal(1.0f + e);
  return s + x * (e * s * s) * gelu_two_c * (1.0f + 3.0f * gelu_a * x * x);
}

}  // namespace hearth::cpu
