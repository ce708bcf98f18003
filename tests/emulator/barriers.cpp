// Barriers of the block, and the meetings of the lanes of a warp.
#include <bit>

#include "emulator/block.h"

namespace hearth::emulator {
namespace {

void release(Block& block, NamedBarrier& barrier) {
  if (block.checker) block.checker->join(barrier.participants);
  const std::vector<int> waiting = std::move(barrier.waiting);
  barrier = {};
  for (int thread : waiting)
    block.wake(thread);
}

// CUDA asks for all threads at the same __syncthreads; different ones happen to work on some GPUs.
void check_same_place(Block& block, const NamedBarrier& barrier, Site site) {
  if (barrier.arrived > 0 && !(barrier.site == site))
    block.fail("divergent __syncthreads: threads of one block wait" + block.place(barrier.site) + " and",
               site);
}

void arrive(int id, int expected, bool wait, bool whole_block, Site site) {
  Block& block = running_block();
  NamedBarrier& barrier = block.barriers[id];
  if (whole_block) {
    check_same_place(block, barrier, site);
    if (block.finished > 0)
      block.fail(
          "divergent __syncthreads: " + std::to_string(block.finished) + " threads of the block have ended",
          site);
  }
  if (barrier.arrived > 0 && barrier.expected != expected)
    block.fail("barrier " + std::to_string(id) + " is used for " + std::to_string(barrier.expected) +
                   " and for " + std::to_string(expected) + " threads at once",
               site);
  barrier.expected = expected;
  barrier.site = site;
  ++barrier.arrived;
  barrier.participants.push_back(block.current->id);
  if (barrier.arrived == expected) {
    release(block, barrier);
  } else if (wait) {
    barrier.waiting.push_back(block.current->id);
    block.wait(whole_block ? "__syncthreads" : "a named barrier", site);
  }
}

}  // namespace

void block_barrier(Site site) {
  Block& block = running_block();
  if (block.current->id == 0) ++block.counted.block_barriers;
  arrive(0, block.thread_count, true, true, site);
}

void named_barrier(int id, int threads, bool wait, Site site) {
  Block& block = running_block();
  if (id < 1 || id > 15)
    block.fail("barrier " + std::to_string(id) + " does not exist, ids are 1 to 15", site);
  if (threads <= 0 || threads % lanes_per_warp || threads > block.thread_count)
    block.fail("a barrier for " + std::to_string(threads) + " threads in a block of " +
                   std::to_string(block.thread_count),
               site);
  arrive(id, threads, wait, false, site);
}

void warp_collective(uint32_t mask, WarpOperation& operation, Site site) {
  Block& block = running_block();
  Thread& self = *block.current;
  Warp& warp = block.warps[self.warp];
  if (warp.lanes < lanes_per_warp) mask &= (1u << warp.lanes) - 1;
  if (!(mask >> self.lane & 1)) block.fail("warp-wide instruction by a lane that is not in its mask", site);

  Meeting* meeting = nullptr;
  for (Meeting& each : warp.meetings) {
    if (each.mask == mask)
      meeting = &each;
    else if (each.arrived & mask)
      block.fail("warp-wide instructions with overlapping masks," + block.place(each.site) + " and", site);
  }
  if (!meeting) {
    warp.meetings.emplace_back();
    meeting = &warp.meetings.back();
    meeting->mask = mask;
  }
  if (meeting->arrived == 0) {
    meeting->execute = operation.execute;
    meeting->site = site;
  } else if (meeting->execute != operation.execute || !(meeting->site == site)) {
    block.fail("divergent warp: lanes execute different warp-wide instructions," +
                   block.place(meeting->site) + " and",
               site);
  }
  meeting->operands[self.lane] = &operation;
  meeting->arrived |= 1u << self.lane;
  if (meeting->arrived != mask) {
    block.wait("the other lanes of its warp", site);
    return;
  }
  block.inside_emulator = true;
  operation.execute(meeting->operands, mask);
  block.inside_emulator = false;
  meeting->arrived = 0;
  for (uint32_t others = mask & ~(1u << self.lane); others; others &= others - 1)
    block.wake(self.warp * lanes_per_warp + std::countr_zero(others));
}

// __syncwarp orders memory among its lanes; shuffles and mma.sync do not.
void warp_barrier(uint32_t mask, Site site) {
  WarpOperation operation;
  operation.execute = [](WarpOperation* const*, uint32_t lanes) {
    Block& block = running_block();
    if (!block.checker) return;
    int threads[lanes_per_warp];
    int count = 0;
    for (; lanes; lanes &= lanes - 1)
      threads[count++] = block.current->warp * lanes_per_warp + std::countr_zero(lanes);
    block.checker->join({threads, static_cast<size_t>(count)});
  };
  warp_collective(mask, operation, site);
}

uint32_t ballot(uint32_t mask, bool predicate, Site site) {
  struct Operation : WarpOperation {
    bool predicate;
    uint32_t result;
  };
  Operation operation{{}, predicate, 0};
  operation.execute = [](WarpOperation* const* lanes, uint32_t mask) {
    uint32_t result = 0;
    for (uint32_t m = mask; m; m &= m - 1) {
      const int lane = std::countr_zero(m);
      if (static_cast<Operation*>(lanes[lane])->predicate) result |= 1u << lane;
    }
    for (uint32_t m = mask; m; m &= m - 1)
      static_cast<Operation*>(lanes[std::countr_zero(m)])->result = result;
  };
  warp_collective(mask, operation, site);
  return operation.result;
}

}  // namespace hearth::emulator
