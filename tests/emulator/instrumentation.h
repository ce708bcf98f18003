// Kernels compiled with -fsanitize=thread report every raw memory access by calling functions named __tsan_*.
// In the check build instrumentation.cpp implements them (libtsan is not linked).
#pragma once

#include <cstddef>

namespace hearth::emulator {

// A raw access by the running kernel; `program_counter` is where.
void raw_access(const void* address, size_t bytes, bool write, const void* program_counter);

}  // namespace hearth::emulator
