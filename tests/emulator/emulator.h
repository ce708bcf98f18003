// The SIMT emulator, as tests see it: options, what failed, what was counted.
//
// The emulator runs CUDA kernels, compiled by the host compiler through kernels/simt.cuh and kernels/ptx.cuh,
// on the CPU.  It is deliberately hostile: see Options.  Kernels see simt.h instead; tests/emulator/README.md
// explains the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace hearth::emulator {

// False in the build for a real GPU, which has tests/gpu/emulator/emulator.h instead of this file.
inline constexpr bool plays_the_gpu = true;

// Which warp and lane runs first.  A warp runs until it has to wait ("greedy"): a fair order would hide most
// missing barriers.
enum class Order : uint8_t { forward, reverse, random };

// When asynchronous copies and matrix products take effect: at once, as late as the waits allow, or either.
enum class Async : uint8_t { eager, lazy, random };

struct Options {
  Order order = Order::forward;
  Async async = Async::lazy;
  uint64_t seed = 1;
  // NaN bits in shared memory at block start, in memory from cudaMalloc, in targets in flight.
  bool poison = true;
  // Race detector; global memory only where kernels are compiled with -fsanitize=thread, where it is on from
  // the start.
  bool check = false;
  int threads = 2;  // OS threads over which blocks are distributed; 1 with `check`

  // The device that is played.
  int capability = 90;       // 10 * major + minor
  int first_capability = 0;  // unless 0, that of GPU 0, when there are several
  int multiprocessors = 4;
  size_t memory_bytes = size_t{4} << 30;
  bool present = true;  // false: every runtime call answers cudaErrorNoDevice
  int devices = 1;      // that this process sees; HEARTH_EMULATED_GPUS in the environment sets it
};

// The options of this process.  Changing them while work is queued changes how that work runs.
Options& options();

// A kernel did something wrong, or nothing can run any more.  what() is the whole report.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Work done since reset_statistics(): a stand-in for performance in tests.
struct Statistics {
  uint64_t launches = 0;
  uint64_t blocks = 0;
  uint64_t mma = 0;                 // mma.sync m16n8k16
  uint64_t wgmma = 0;               // warp-level parts of wgmma
  uint64_t ldmatrix = 0;            // 8x8 matrices read
  uint64_t ldmatrix_conflicts = 0;  // extra shared-memory passes because of bank conflicts
  uint64_t async_bytes = 0;         // cp.async and TMA, to shared memory
  uint64_t block_barriers = 0;
  uint64_t host_waits = 0;  // the host had to wait for unfinished work of a stream
};
Statistics statistics();
void reset_statistics();

// Whether the kernels of this executable were compiled so that raw global accesses are seen ("check build").
bool sees_global_accesses();

}  // namespace hearth::emulator
