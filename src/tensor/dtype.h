// Element types, and bf16 as a value type.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace hearth {

enum class DType : uint8_t { f64, f32, bf16, i64, i32, u8 };

constexpr int64_t size_of(DType type) {
  switch (type) {
    case DType::f64:
      return 8;
    case DType::f32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::i64:
      return 8;
    case DType::i32:
      return 4;
    case DType::u8:
      return 1;
  }
  return 0;
}

// The safetensors names: "F64", "F32", "BF16", "I64", "I32", "U8".
std::string_view name_of(DType type);

// bfloat16: the upper half of an IEEE float.  Conversion rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : rounded);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}

// The three precisions that a run can have.  Types in bf16 mode are listed in device/ops.h.
enum class Precision : uint8_t { fp32, bf16, fp64 };

// Weights for compute, residual stream, activations and their gradients, logits.
constexpr DType compute_dtype(Precision p) {
  return p == Precision::bf16 ? DType::bf16 : p == Precision::fp64 ? DType::f64 : DType::f32;
}
// Statistics, weight gradients, master weights, AdamW moments.
constexpr DType master_dtype(Precision p) {
  return p == Precision::fp64 ? DType::f64 : DType::f32;
}
std::string_view name_of(Precision p);

}  // namespace hearth
