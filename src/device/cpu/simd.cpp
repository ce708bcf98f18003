// What the processor offers.
#include "device/cpu/simd.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hearth::cpu {

Isa host_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? Isa::avx512 : v3 ? Isa::avx2 : Isa::baseline;
#else
  return Isa::baseline;
#endif
}

std::string_view name_of(Isa isa) {
#if defined(__x86_64__)
  return isa == Isa::avx512 ? "AVX-512" : isa == Isa::avx2 ? "AVX2" : "SSE2";
#else
  static_cast<void>(isa);
  return "portable vectors";
#endif
}

bool host_has_bf16_instructions() {
#if defined(__x86_64__)
  return host_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

bool host_has_fast_bf16_instructions() {
#if defined(__x86_64__)
  if (!host_has_bf16_instructions()) return false;
  if (__builtin_cpu_is("amd")) return true;
  // AMX-BF16 (leaf 7, EDX bit 22), which oneDNN uses by itself.
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
#else
  return false;
#endif
}

}  // namespace hearth::cpu
