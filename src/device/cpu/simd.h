// Run-time dispatch to instruction sets, and element access for kernels.
//
// A kernel is an always-inline function or lambda.  simd() calls it from a function that is compiled for the
// wanted instruction set, so that one source is vectorised three times and the binary runs on every x86-64.
// Which instruction set runs may change the last bits of a result; the number of threads never does.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "tensor/dtype.h"

namespace hearth::cpu {

// x86-64 levels: v1 (SSE2), v3 (AVX2, FMA), v4 (AVX-512).  Other architectures have only `baseline`.
enum class Isa : uint8_t { baseline, avx2, avx512 };

// The best that this machine has.
Isa host_isa();
std::string_view name_of(Isa isa);
// vdpbf16ps, and whether it is worth using: whole-rate units exist on AMD since Zen 5, Intel's run at half
// the rate of fp32 multiply-add.
bool host_has_bf16_instructions();
bool host_has_fast_bf16_instructions();

// What a kernel may know about the instruction set that it is compiled for.
template <Isa which>
struct IsaTag {
  static constexpr Isa isa = which;
  // Floats in a vector register.
  static constexpr int width = which == Isa::avx512 ? 16 : which == Isa::avx2 ? 8 : 4;
};

template <class Kernel>
[[gnu::noinline]] void run_baseline(Kernel kernel) {
  kernel(IsaTag<Isa::baseline>{});
}
#if defined(__x86_64__)
template <class Kernel>
[[gnu::noinline, gnu::target("arch=x86-64-v3")]] void run_avx2(Kernel kernel) {
  kernel(IsaTag<Isa::avx2>{});
}
template <class Kernel>
[[gnu::noinline, gnu::target("arch=x86-64-v4")]] void run_avx512(Kernel kernel) {
  kernel(IsaTag<Isa::avx512>{});
}
#endif

// Runs kernel(IsaTag).  The kernel is a lambda that captures by value (so that no store can alias what it
// captured) and carries __attribute__((always_inline)).
template <class Kernel>
inline void simd(Isa isa, Kernel kernel) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return run_avx512(kernel);
  if (isa == Isa::avx2) return run_avx2(kernel);
#else
  static_cast<void>(isa);
#endif
  run_baseline(kernel);
}

// Compute types as float and back; storing rounds to nearest even.
[[gnu::always_inline]] inline float to_float(float x) {
  return x;
}
[[gnu::always_inline]] inline float to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
template <class T>
[[gnu::always_inline]] inline T rounded(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return bf16(x);
}

}  // namespace hearth::cpu
