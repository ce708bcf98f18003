// Stands in for tests/emulator/emulator.h where the kernels' tests run on a real GPU: the same names, which
// change nothing there.  It is found first on the include path of that build.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hearth::emulator {

inline constexpr bool plays_the_gpu = false;

enum class Order : uint8_t { forward, reverse, random };
enum class Async : uint8_t { eager, lazy, random };

// The fields are the emulator's: `make test` compiles the kernels' tests against both.
struct Options {
  Order order = Order::forward;
  Async async = Async::lazy;
  uint64_t seed = 1;
  bool poison = false;
  bool check = false;
  int threads = 1;
  int capability = 0;
  int multiprocessors = 0;
  size_t memory_bytes = 0;
  bool present = true;
  int devices = 1;
};
inline Options& options() {
  static Options unused;
  return unused;
}

struct Statistics {
  uint64_t launches = 0;
  uint64_t blocks = 0;
  uint64_t mma = 0;
  uint64_t wgmma = 0;
  uint64_t ldmatrix = 0;
  uint64_t ldmatrix_conflicts = 0;
  uint64_t async_bytes = 0;
  uint64_t block_barriers = 0;
  uint64_t host_waits = 0;
};
inline Statistics statistics() {
  return {};
}
inline void reset_statistics() {}

inline bool sees_global_accesses() {
  return false;
}

}  // namespace hearth::emulator
