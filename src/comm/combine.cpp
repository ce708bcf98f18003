#include "comm/combine.h"

#include <algorithm>
#include <array>

namespace hearth {
namespace {

// Elements that are accumulated at a time: the accumulators stay in the first-level cache, and a part that is
// also the output has been read before it is written.
constexpr int64_t block = 1024;

template <class T>
struct Accumulator {
  using Type = T;
};
template <>
struct Accumulator<bf16> {
  using Type = float;
};

template <Reduce op, class Value>
Value apply(Value a, Value b) {
  if constexpr (op == Reduce::sum) return a + b;
  return b > a || b != b ? b : a;  // b != b: NaN wins, as in a sum
}

template <class T, Reduce op>
void combine_typed(std::span<const void* const> parts, void* out, int64_t count) {
  using Value = typename Accumulator<T>::Type;
  std::array<Value, block> sum;
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t n = std::min(block, count - begin);
    const T* first = static_cast<const T*>(parts[0]) + begin;
    for (int64_t i = 0; i < n; ++i)
      sum[i] = static_cast<Value>(first[i]);
    for (const void* part : parts.subspan(1)) {
      const T* next = static_cast<const T*>(part) + begin;
      for (int64_t i = 0; i < n; ++i)
        sum[i] = apply<op>(sum[i], static_cast<Value>(next[i]));
    }
    T* to = static_cast<T*>(out) + begin;
    for (int64_t i = 0; i < n; ++i)
      to[i] = static_cast<T>(sum[i]);
  }
}

template <class T>
void combine_typed(Reduce op, std::span<const void* const> parts, void* out, int64_t count) {
  if (op == Reduce::sum)
    combine_typed<T, Reduce::sum>(parts, out, count);
  else
    combine_typed<T, Reduce::max>(parts, out, count);
}

}  // namespace

void combine(DType type, Reduce op, std::span<const void* const> parts, void* out, int64_t count) {
  switch (type) {
    case DType::f64:
      return combine_typed<double>(op, parts, out, count);
    case DType::f32:
      return combine_typed<float>(op, parts, out, count);
    case DType::bf16:
      return combine_typed<bf16>(op, parts, out, count);
    case DType::i64:
      return combine_typed<int64_t>(op, parts, out, count);
    case DType::i32:
      return combine_typed<int32_t>(op, parts, out, count);
    case DType::u8:
      break;
  }
  check(false, "a reduction of ", name_of(type), " elements");
}

}  // namespace hearth
