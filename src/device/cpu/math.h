// Elementary functions for vectorised loops: no branch, no table, no library call, and no comparison of
// floats (g++ turns those into mask arithmetic that costs more than the function).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hearth::cpu {

// Adding it to a float of less than 2^22 rounds to an integer, which the low bits of the sum hold.
constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23

// 2^n for the integer n = shifted - round_magic, up to 127; 0 where it would be denormal.
[[gnu::always_inline]] inline float power_of_two(float shifted) {
  constexpr int32_t zero_exponent = std::bit_cast<int32_t>(round_magic) - 127;
  const int32_t exponent = std::max(std::bit_cast<int32_t>(shifted), zero_exponent) - zero_exponent;
  return std::bit_cast<float>(exponent << 23);
}

// e^x for finite x up to 88, relative error below 3e-7, and exactly 1 for 0 (an online softmax multiplies by
// it once a tile); 0 where the result would be denormal; NaN stays NaN.  Cody and Waite reduction to |r| <=
// ln(2)/2, then a polynomial 1 + r + r^2 q(r) of degree 5 fitted to relative error (1.2e-7).
[[gnu::always_inline]] inline float exp_fast(float x) {
  constexpr float log2_e = 1.44269504088896341f;
  constexpr float ln2_high = 0.693145751953125f;
  constexpr float ln2_low = 1.42860682030941723212e-6f;
  const float shifted = x * log2_e + round_magic;
  const float n = shifted - round_magic;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float p = 0.0083338351094f;
  p = p * r + 0.0418990384941f;
  p = p * r + 0.1666688730331f;
  p = p * r + 0.4999913917826f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * power_of_two(shifted);
}

// 2^t for finite t up to 127, by the minimax polynomial of degree 5 (7.5e-8); the relative error grows with
// the rounding of t.
[[gnu::always_inline]] inline float exp2_fast(float t) {
  const float shifted = t + round_magic;
  const float f = t - (shifted - round_magic);
  float p = 0.0013276471980f;
  p = p * f + 0.0096755413342f;
  p = p * f + 0.0555071327354f;
  p = p * f + 0.2402211972385f;
  p = p * f + 0.6931469670647f;
  p = p * f + 1.0000000716547f;
  return p * power_of_two(shifted);
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

// GELU in its tanh form (Hendrycks and Gimpel 2016).  With u = sqrt(2/pi) (x + 0.044715 x^3) and e =
// exp(-2u), (1 + tanh u) / 2 is s = 1 / (1 + e), so gelu(x) = x s; and s (1 - s) is e s^2,
// which loses no digits.
struct GeluParts {
  static constexpr double two_c = 2 * 0.79788456080286535588;
  static constexpr double a = 0.044715;
  static constexpr double log2_e = 1.44269504088896340736;

  float square;       // x^2
  float exponential;  // exp(-2u), at most 2^115
  float sigmoid;      // s

  [[gnu::always_inline]] explicit GeluParts(float x) : square(x * x) {
    constexpr int32_t highest = std::bit_cast<int32_t>(115.0f);
    constexpr float linear = static_cast<float>(-two_c * log2_e),
                    cubic = static_cast<float>(-two_c * a * log2_e);
    // As integers, positive floats compare as they should, and negative ones are below all of them.
    const int32_t exponent = std::bit_cast<int32_t>(x * (cubic * square + linear));
    exponential = exp2_fast(std::bit_cast<float>(std::min(exponent, highest)));
    sigmoid = reciprocal(1.0f + exponential);
  }
};

[[gnu::always_inline]] inline float gelu(float x) {
  return x * GeluParts(x).sigmoid;
}

[[gnu::always_inline]] inline float gelu_derivative(float x) {
  constexpr float constant = static_cast<float>(GeluParts::two_c);
  constexpr float quadratic = static_cast<float>(3 * GeluParts::two_c * GeluParts::a);
  const GeluParts g(x);
  const float slope = x * (quadratic * g.square + constant);
  return g.sigmoid + (g.exponential * g.sigmoid) * g.sigmoid * slope;
}

}  // namespace hearth::cpu
