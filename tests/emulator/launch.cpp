#include "emulator/launch.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "emulator/block.h"

namespace hearth::emulator {
namespace {

// The emulated GPU is one per process, as the real one is for CUDA: its state is static.
struct Totals {
  std::mutex mutex;
  Statistics sum;
};
Totals& totals() {
  static Totals instance;
  return instance;
}

void add(Statistics& to, const Statistics& from) {
  to.launches += from.launches;
  to.blocks += from.blocks;
  to.mma += from.mma;
  to.wgmma += from.wgmma;
  to.ldmatrix += from.ldmatrix;
  to.ldmatrix_conflicts += from.ldmatrix_conflicts;
  to.async_bytes += from.async_bytes;
  to.block_barriers += from.block_barriers;
}

// One grid while it runs: OS threads take blocks from it until none is left or one fails.
struct Grid {
  Grid(const Kernel& launched, uint32_t number)
      : kernel(launched),
        launch_number(number),
        blocks(int64_t{launched.grid.x} * launched.grid.y * launched.grid.z) {}

  const Kernel& kernel;
  uint32_t launch_number;
  int64_t blocks;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  int64_t failed_block = -1;
  std::string failure;

  void work(Block& block) {
    for (;;) {
      const int64_t taken = next++;
      if (taken >= blocks) return;
      // Some bugs show only when a later block runs first.
      const int64_t number = options().order == Order::reverse ? blocks - 1 - taken : taken;
      try {
        block.run(kernel, launch_number, number);
      } catch (const Failure& problem) {
        const std::lock_guard lock(mutex);
        if (failed_block < 0 || taken < failed_block) {
          failed_block = taken;
          failure = problem.what();
        }
        next = blocks;
      }
    }
  }
};

// The second OS thread: sleeps until it is handed a grid.
class Helper {
 public:
  Helper() : thread_([this](std::stop_token stop) { loop(stop); }) {}
  ~Helper() {
    thread_.request_stop();
    changed_.notify_all();
  }
  void offer(Grid& grid) {
    const std::lock_guard lock(mutex_);
    offered_ = &grid;
    changed_.notify_all();
  }
  // Takes the offer back, or waits until the helper is done with it.
  void finish() {
    std::unique_lock lock(mutex_);
    offered_ = nullptr;
    done_.wait(lock, [&] { return !busy_; });
  }

 private:
  void loop(std::stop_token stop) {
    Block block;
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return offered_ != nullptr; })) {
      Grid& grid = *std::exchange(offered_, nullptr);
      busy_ = true;
      lock.unlock();
      grid.work(block);
      {
        const std::lock_guard guard(totals().mutex);
        add(totals().sum, block.counted);
        block.counted = {};
      }
      lock.lock();
      busy_ = false;
      done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::condition_variable done_;
  Grid* offered_ = nullptr;
  bool busy_ = false;
  std::jthread thread_;
};

}  // namespace

Options& options() {
  static Options instance = [] {
    Options o;
    o.check = sees_global_accesses();
    if (const char* devices = std::getenv("HEARTH_EMULATED_GPUS"))
      o.devices = std::max(1, std::atoi(devices));
    return o;
  }();
  return instance;
}

Statistics statistics() {
  const std::lock_guard lock(totals().mutex);
  return totals().sum;
}

void count_host_wait() {
  const std::lock_guard lock(totals().mutex);
  ++totals().sum.host_waits;
}

void reset_statistics() {
  const std::lock_guard lock(totals().mutex);
  totals().sum = {};
}

cudaError_t validate(const Kernel& kernel, size_t granted_shared_bytes) {
  const auto& [x, y, z] = kernel.block;
  const uint64_t threads = uint64_t{x} * y * z;
  if (threads == 0 || threads > max_threads || z > 64) return cudaErrorInvalidConfiguration;
  const dim3& grid = kernel.grid;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaErrorInvalidConfiguration;
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
  if (kernel.shared_bytes > granted_shared_bytes) return cudaErrorInvalidValue;
  return cudaSuccess;
}

void run(const Kernel& kernel) {
  static std::atomic<uint32_t> launches{0};
  thread_local Block block;
  Grid grid(kernel, ++launches);
  constexpr int64_t worth_sharing = 16;
  const bool share = options().threads > 1 && !options().check && grid.blocks >= worth_sharing;
  static std::optional<Helper> helper;
  if (share) {
    if (!helper) helper.emplace();
    helper->offer(grid);
  }
  grid.work(block);
  if (share) helper->finish();
  {
    const std::lock_guard lock(totals().mutex);
    block.counted.launches = 1;
    add(totals().sum, block.counted);
    block.counted = {};
  }
  if (grid.failed_block >= 0) throw Failure(grid.failure);
}

}  // namespace hearth::emulator
