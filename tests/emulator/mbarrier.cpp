// mbarrier: a phase ends when all its arrivals have come and all its expected bytes are delivered.
#include <cstring>

#include "emulator/block.h"
#include "emulator/mbarrier.h"

namespace hearth::emulator {
namespace {

// What the 8 bytes in shared memory hold, so that a kernel that writes over its barrier is noticed.
uint64_t mark(uint32_t address) {
  return 0x6d62617272696572u ^ address;
}

Mbarrier& find(Block& block, uint32_t address, Site site) {
  const auto found = block.mbarriers.find(address);
  if (found == block.mbarriers.end()) block.fail("the mbarrier is not initialised", site);
  uint64_t bits;
  std::memcpy(&bits, block.shared(address), sizeof bits);
  if (bits != mark(address)) block.fail("the mbarrier was overwritten", site);
  // Its initialisation must be ordered before every use.
  if (block.checker && block.current)
    block.checker->shared(block.current->id, address, 8, Access::read, Proxy::generic, Place(site));
  return found->second;
}

void end_phase_if_complete(Block& block, uint32_t address, Mbarrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.arrivals;
  if (block.checker) block.checker->complete_phase(address);
  const std::vector<int> waiting = std::move(barrier.waiting);
  barrier.waiting.clear();
  for (int thread : waiting)
    block.wake(thread);
}

void arrive(uint32_t address, uint32_t bytes, Site site) {
  Block& block = running_block();
  Mbarrier& barrier = find(block, address, site);
  constexpr int64_t most_bytes = (1 << 20) - 1;
  barrier.bytes += bytes;
  if (barrier.bytes > most_bytes) block.fail("an mbarrier cannot expect more than 2^20 - 1 bytes", site);
  if (barrier.pending == 0)
    block.fail("more arrivals at an mbarrier than it was initialised for, before its phase ended", site);
  if (block.checker) block.checker->release(address, block.current->id);
  --barrier.pending;
  end_phase_if_complete(block, address, barrier);
}

}  // namespace

void mbarrier_init(uint32_t address, uint32_t arrivals, Site site) {
  Block& block = running_block();
  if (address % 8) block.fail("the mbarrier is not aligned to 8 bytes", site);
  char* memory = block.shared_range(address, 8, "mbarrier.init", site);
  if (arrivals == 0) block.fail("an mbarrier for 0 arrivals", site);
  if (block.checker)
    block.checker->shared(block.current->id, address, 8, Access::write, Proxy::generic, Place(site));
  block.mbarriers[address] = {arrivals, arrivals, 0, 0, {}};
  const uint64_t bits = mark(address);
  std::memcpy(memory, &bits, sizeof bits);
}

void mbarrier_arrive(uint32_t address, Site site) {
  arrive(address, 0, site);
}

void mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes, Site site) {
  arrive(address, bytes, site);
}

// Suspends until the phase of this parity has ended, so that a wait for ever is a deadlock and not a hang.
void mbarrier_wait(uint32_t address, uint32_t parity, Site site) {
  Block& block = running_block();
  while ((find(block, address, site).phase & 1) == (parity & 1)) {
    block.mbarriers.at(address).waiting.push_back(block.current->id);
    block.wait("an mbarrier", site);
  }
  if (block.checker) block.checker->acquire(address, block.current->id);
}

void begin_delivery(Block& block, uint32_t address, Site site) {
  find(block, address, site);
  // Whoever sees the phase end knows what the issuing thread had done.
  if (block.checker) block.checker->release(address, block.current->id);
}

void deliver(Block& block, uint32_t address, uint32_t bytes) {
  Mbarrier& barrier = block.mbarriers.at(address);
  barrier.bytes -= bytes;
  end_phase_if_complete(block, address, barrier);
}

}  // namespace hearth::emulator
