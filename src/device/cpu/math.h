// Elementary functions for vectorised loops: no branch, no table, no library call.
#pragma once

#include <bit>
#include <cstdint>

namespace hearth::cpu {

// e^x, relative error below 2e-7.  0 below -87.3 (where the result would be denormal), infinity above 88.7;
// NaN stays NaN.  Cody and Waite reduction to |r| <= ln(2)/2, then a polynomial of degree 6.
[[gnu::always_inline]] inline float exp_fast(float x) {
  constexpr float log2_e = 1.44269504088896341f;
  constexpr float ln2_high = 0.693145751953125f;
  constexpr float ln2_low = 1.42860682030941723212e-6f;
  constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float lowest = -87.3f;
  constexpr float highest = 88.7f;
  float t = x < lowest ? lowest : x;
  t = t > highest ? highest : t;
  const float shifted = t * log2_e + round_magic;
  const float n = shifted - round_magic;
  const float r = (t - n * ln2_high) - n * ln2_low;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors, because n may be 128.
  const int32_t whole = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(round_magic);
  const int32_t half = whole >> 1;
  const float scale1 = std::bit_cast<float>((half + 127) << 23);
  const float scale2 = std::bit_cast<float>((whole - half + 127) << 23);
  float result = p * scale1 * scale2;
  result = x < lowest ? 0.0f : result;
  result = x > highest ? std::bit_cast<float>(0x7f800000) : result;
  return x != x ? x : result;
}

// 1 / (1 + e^-x)
[[gnu::always_inline]] inline float sigmoid(float x) {
  return 1.0f / (1.0f + exp_fast(-x));
}

// GELU in its tanh form (Hendrycks and Gimpel 2016).  With u = sqrt(2/pi) (x + 0.044715 x^3),
// (1 + tanh u) / 2 is sigmoid(2u), so gelu(x) = x sigmoid(2u).
constexpr float gelu_two_c = 2 * 0.79788456080286535588f;
constexpr float gelu_a = 0.044715f;

[[gnu::always_inline]] inline float gelu(float x) {
  return x * sigmoid(gelu_two_c * (x + gelu_a * x * x * x));
}

[[gnu::always_inline]] inline float gelu_derivative(float x) {
  const float s = sigmoid(gelu_two_c * (x + gelu_a * x * x * x));
  return s + x * s * (1.0f - s) * gelu_two_c * (1.0f + 3.0f * gelu_a * x * x);
}

}  // namespace hearth::cpu
