// cp.async: 16 bytes from global to shared memory, complete at the issuing thread's wait_group.
#include <cstring>

#include "emulator/block.h"

namespace hearth::emulator {
namespace {

void copy(Block& block, const AsyncCopy& c) {
  char* to = block.shared(c.to);
  std::memset(to, 0, 16);
  if (c.source_bytes) std::memcpy(to, c.from, c.source_bytes);
}

}  // namespace

void cp_async16(uint32_t to, const void* from, uint32_t source_bytes, Site site) {
  Block& block = running_block();
  Thread& self = *block.current;
  if (to % 16) block.fail("cp.async target is not a multiple of 16", site);
  if (reinterpret_cast<uintptr_t>(from) % 16) block.fail("cp.async source is not a multiple of 16", site);
  char* target = block.shared_range(to, 16, "cp.async", site);
  if (source_bytes) check_global(block, from, source_bytes, Access::read, "cp.async", site);
  if (block.checker) block.checker->begin_copy(self.id, to, 16, Proxy::generic, Place(site));
  const AsyncCopy operation{to, from, source_bytes, site};
  block.counted.async_bytes += 16;
  if (block.completes_now())
    copy(block, operation);
  else if (options().poison)
    std::memset(target, 0xff, 16);
  self.copies.push_back(operation);
}

void cp_async_commit() {
  Thread& self = *running_block().current;
  self.copy_groups.push_back(std::move(self.copies));
  self.copies.clear();
}

void cp_async_wait(int groups_in_flight) {
  Block& block = running_block();
  Thread& self = *block.current;
  while (static_cast<int>(self.copy_groups.size()) > groups_in_flight) {
    for (const AsyncCopy& each : self.copy_groups.front()) {
      if (options().async != Async::eager) copy(block, each);
      if (block.checker) block.checker->end_copy(self.id, each.to, 16);
    }
    self.copy_groups.pop_front();
  }
}

}  // namespace hearth::emulator
