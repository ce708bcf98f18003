// The emulator's inside: one thread block while it runs, and the scheduler of its threads.
//
// A Block object plays one multiprocessor: it runs blocks one after another on one OS thread, and keeps its
// fibers and its shared memory from block to block.  The instructions are spread over barriers.cpp,
// tensor_core.cpp, cp_async.cpp, mbarrier.cpp, tma.cpp and wgmma.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/checker.h"
#include "emulator/emulator.h"
#include "emulator/fiber.h"
#include "emulator/simt.h"

namespace hearth::emulator {

constexpr int lanes_per_warp = 32;
constexpr int warps_per_group = 4;             // of a warpgroup
constexpr uint32_t shared_base = 1024;         // first dynamic byte; address 0 is never valid, as on sm_90
constexpr uint32_t shared_limit = 227 * 1024;  // what a block can have on sm_90
constexpr int max_threads = 1024;

// A copy by cp.async.
struct AsyncCopy {
  uint32_t to;
  const void* from;
  uint32_t source_bytes;
  Site site;
};
// A TMA store: reads shared memory, then writes global memory.
struct BulkStore {
  std::function<void()> read;   // shared memory -> `staged`
  std::function<void()> write;  // `staged` -> global memory
  bool read_done = false;
};
// One warp's part of a wgmma.
struct WgmmaOperation {
  int columns;
  bool accumulate, a_mn_major, b_mn_major, a_in_registers;
  uint64_t a_descriptor, b_descriptor;
  float* accumulator[lanes_per_warp];
  uint32_t a[lanes_per_warp][4];
  std::vector<float> inputs;  // the accumulators before, where they were hidden
  bool done;
  Site site;
};
// The wgmma of one warp, numbered in the order of issue.
struct WgmmaQueue {
  std::deque<WgmmaOperation> operations;  // the youngest; operations.back() has number issued - 1
  int64_t issued = 0;
  int64_t waited = 0;  // operations before this number have been waited for
  std::deque<int64_t> group_ends;
  bool fenced = false;
  std::vector<int> waiting;  // threads of other warps of the warpgroup that wait for this one to issue
};

struct Thread {
  enum class State : uint8_t { ready, waiting, finished };
  int id = 0, lane = 0, warp = 0;
  uint3 index{};
  State state = State::finished;
  const char* waits_for = "";
  Site site;
  Fiber fiber;
  bool parked = false;  // the fiber stands at the end of its loop and can run the next block
  std::vector<AsyncCopy> copies;
  std::deque<std::vector<AsyncCopy>> copy_groups;
  std::vector<BulkStore> stores;
  std::deque<std::vector<BulkStore>> store_groups;
};

// Lanes that meet in one warp-wide instruction.
struct Meeting {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  void (*execute)(WarpOperation* const*, uint32_t) = nullptr;
  Site site;
  WarpOperation* operands[lanes_per_warp];
};

struct Warp {
  int lanes = lanes_per_warp;
  uint32_t ready = 0;
  std::vector<Meeting> meetings;
  WgmmaQueue wgmma;
  int registers = 0;  // by setmaxnreg; 0 = never called
};

struct NamedBarrier {
  int expected = 0;
  int arrived = 0;
  Site site;
  std::vector<int> waiting;
  std::vector<int> participants;
};

struct Mbarrier {
  uint32_t arrivals = 0;  // per phase
  uint32_t pending = 0;
  int64_t bytes = 0;  // expected and not yet delivered
  uint32_t phase = 0;
  std::vector<int> waiting;
};

struct Block {
  Block();
  ~Block();

  // Runs block `number` of a launch.  Throws Failure.
  void run(const Kernel& kernel, uint32_t launch_number, int64_t number);

  // ---- called on fibers
  // Suspends the current thread until wake().
  void wait(const char* reason, Site site);
  void wake(int thread);
  [[noreturn]] void fail(const std::string& what, Site site);
  [[noreturn]] void abandon();  // leaves the current fiber for good, after `failure` was set
  bool completes_now();         // whether an asynchronous operation takes effect at once
  uint64_t random();

  char* shared(uint32_t address) { return shared_bytes_ + (address - shared_base); }
  // The bytes at `address`, or a failure that names `what`.
  char* shared_range(uint32_t address, uint32_t bytes, const char* what, Site site);

  std::string describe(int thread) const;
  std::string place(Site site) const;

  // ---- state
  Thread* current = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  NamedBarrier barriers[16];
  std::unordered_map<uint32_t, Mbarrier> mbarriers;
  std::deque<std::function<void()>> in_flight;  // TMA loads that have not taken effect
  std::unique_ptr<Checker> checker_storage;
  Checker* checker = nullptr;    // null without Options::check
  bool inside_emulator = false;  // a collective runs: accesses seen by the callbacks are not the kernel's
  int thread_count = 0;
  int finished = 0;
  uint32_t dynamic_bytes = 0;
  uint3 block_index{};
  int64_t block_number = 0;
  const Kernel* kernel = nullptr;
  std::string failure;
  Statistics counted;

 private:
  friend void fiber_main();
  void prepare(const Kernel& kernel, uint32_t launch_number, int64_t number);
  void schedule(Thread* leaving);
  int next_ready();
  void complete_one_in_flight();
  void finish_current();
  std::string deadlock_report() const;
  void check_nothing_left(const Thread& thread);

  std::unique_ptr<char[]> shared_storage_;
  char* shared_bytes_ = nullptr;
  void* main_context_ = nullptr;
  uint32_t ready_warps_ = 0;
  int last_warp_ = 0;
  uint64_t random_state_ = 1;
};

// The block that runs on this OS thread, null outside of kernels.
Block*& current_block();
// The same, inside an instruction; fails outside of kernels.
Block& running_block();

// Global memory: what `bytes` bytes at `address` belong to.
void check_global(Block& block, const void* address, size_t bytes, Access access, const char* what,
                  Site site);

}  // namespace hearth::emulator
