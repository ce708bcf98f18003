// Elementary functions for vectorised loops: no branch, no table, no library call, and no comparison of
// floats (g++ turns those into mask arithmetic that costs more than the function).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hearth::cpu {

// e^x for finite x up to 88, relative error below 3e-7; 0 where the result would be denormal; NaN stays NaN.
// Cody and Waite reduction to |r| <= ln(2)/2, then a polynomial of degree 6.
[[gnu::always_inline]] inline float exp_fast(float x) {
  constexpr float log2_e = 1.44269504088896341f;
  constexpr float ln2_high = 0.693145751953125f;
  constexpr float ln2_low = 1.42860682030941723212e-6f;
  constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
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
  // The low bits of `shifted` hold n.  2^n has n + 127 in its exponent; an exponent of 0 makes the factor 0.
  constexpr int32_t zero_exponent = std::bit_cast<int32_t>(round_magic) - 127;
  const int32_t exponent = std::max(std::bit_cast<int32_t>(shifted), zero_exponent) - zero_exponent;
  return p * std::bit_cast<float>(exponent << 23);
}

// 1 / x for x in [2^-120, 2^120], relative error below 2e-7: three steps of Newton's method from a guess that
// negates the exponent.  Several times faster than a vector division.
[[gnu::always_inline]] inline float reciprocal(float x) {
  float y = std::bit_cast<float>(0x7ef311c7 - std::bit_cast<int32_t>(x));
  y = y * (2.0f - x * y);
  y = y * (2.0f - x * y);
  y = y * (2.0f - x * y);
  return y;
}

// GELU in its tanh form (Hendrycks and Gimpel 2016).  With u = sqrt(2/pi) (x + 0.044715 x^3) and
// e = exp(-2|u|), the sigmoid of 2|u| is s = 1 / (1 + e), and (1 + tanh u) / 2 is s, or e s = 1 - s where u <
// 0.
struct GeluParts {
  float e;        // at least e^-80
  float s;        // 1 / (1 + e)
  float sigmoid;  // (1 + tanh u) / 2

  static constexpr float two_c = 2 * 0.79788456080286535588f;
  static constexpr float a = 0.044715f;

  [[gnu::always_inline]] explicit GeluParts(float x) {
    constexpr int32_t eighty = std::bit_cast<int32_t>(80.0f);
    const int32_t u = std::bit_cast<int32_t>(two_c * (x + a * x * x * x));
    const int32_t magnitude = std::min(u & 0x7fffffff, eighty);
    e = exp_fast(-std::bit_cast<float>(magnitude));
    s = reciprocal(1.0f + e);
    sigmoid = u < 0 ? e * s : s;
  }
};

[[gnu::always_inline]] inline float gelu(float x) {
  return x * GeluParts(x).sigmoid;
}

[[gnu::always_inline]] inline float gelu_derivative(float x) {
  const GeluParts g(x);
  return g.sigmoid + x * (g.e * g.s * g.s) * (GeluParts::two_c * (1.0f + 3.0f * GeluParts::a * x * x));
}

}  // namespace hearth::cpu
