// Stands in for tests/emulator/emulator.h where the kernels' tests run on a real GPU: the same names, which
// change nothing there.  It is found first on the include path of that build.
#pragma once

#include <cstdint>

namespace hearth::emulator {

inline constexpr bool plays_the_gpu = false;

enum class Order : uint8_t { forward, reverse, random };
enum class Async : uint8_t { eager, lazy, random };

struct Options {
  Order order = Order::forward;
  Async async = Async::lazy;
  uint64_t seed = 1;
  bool poison = false;
  bool check = false;
  int threads = 1;
  int capability = 0;
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
};
inline Options& options() {
  static Options unused;
  return unused;
}

struct Statistics {
  uint64_t wgmma = 0;
};
inline Statistics statistics() {
  return {};
}
inline void reset_statistics() {}

inline bool sees_global_accesses() {
  return false;
}

}  // namespace hearth::emulator
