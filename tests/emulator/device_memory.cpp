#include "emulator/device_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <new>
#include "base/error.h"

namespace hearth::emulator {
namespace {

constexpr size_t page = 4096;
constexpr size_t guard = 16 * page;  // never accessible, after every allocation

size_t whole_pages(size_t bytes) {
  return (bytes + page - 1) / page * page;
}

std::atomic<uint64_t> latest_version{1};
struct CachedRange {
  uint64_t version = 0;
  DeviceMemory::Range range;
};
thread_local CachedRange cached;

}  // namespace

DeviceMemory::DeviceMemory() {
  void* memory = mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(memory);
}

void* DeviceMemory::allocate(size_t bytes, size_t limit, bool poison) {
  const std::lock_guard lock(mutex_);
  const size_t size = whole_pages(bytes ? bytes : 1);
  if (used_ + size > limit || size > reserved_bytes / 2) return nullptr;
  // First fit from `next_`: addresses are reused late, so that a use after free meets no other allocation.
  for (int pass = 0; pass < 2; ++pass) {
    while (next_ + size + guard <= reserved_bytes) {
      auto after = live_.lower_bound(base_ + next_);
      const size_t gap_end =
          after == live_.end() ? reserved_bytes : static_cast<size_t>(after->first - base_);
      if (next_ + size + guard <= gap_end) {
        char* address = base_ + next_;
        mprotect(address, size, PROT_READ | PROT_WRITE);
        if (poison) std::memset(address, 0xff, size);
        if (opened_ == 0) mprotect(address, size, PROT_NONE);
        live_[address] = bytes;
        next_ += size + guard;
        used_ += size;
        latest_version++;
        return address;
      }
      next_ = gap_end + whole_pages(after->second) + guard;
    }
    next_ = 0;
  }
  return nullptr;
}

bool DeviceMemory::release(void* address) {
  const std::lock_guard lock(mutex_);
  auto found = live_.find(static_cast<char*>(address));
  if (found == live_.end()) return false;
  const size_t size = whole_pages(found->second ? found->second : 1);
  // A new mapping joins its neighbours, so that their number, which the kernel limits, does not grow.
  mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  used_ -= size;
  live_.erase(found);
  latest_version++;
  return true;
}

DeviceMemory::Range DeviceMemory::find(const void* address) {
  if (cached.version == latest_version && cached.range.contains(address, 1)) return cached.range;
  const std::lock_guard lock(mutex_);
  auto* p = static_cast<char*>(const_cast<void*>(address));
  auto after = live_.upper_bound(p);
  if (after == live_.begin()) return {};
  --after;
  const Range range{after->first, after->second};
  if (!range.contains(address, 1)) return {};
  cached = {latest_version, range};
  return range;
}

bool DeviceMemory::covers(const void* address) const {
  const char* p = static_cast<const char*>(address);
  return p >= base_ && p < base_ + reserved_bytes;
}

std::string DeviceMemory::describe(const void* address) {
  if (!covers(address)) return "of host memory";
  const std::lock_guard lock(mutex_);
  auto* p = static_cast<char*>(const_cast<void*>(address));
  auto after = live_.upper_bound(p);
  constexpr ptrdiff_t near = 1 << 20;
  if (after != live_.begin()) {
    const auto& [begin, bytes] = *std::prev(after);
    if (p - begin < static_cast<ptrdiff_t>(bytes) + near)
      return text("at offset ", p - begin, " of an allocation of ", bytes, " bytes");
  }
  if (after != live_.end() && after->first - p < near)
    return text(after->first - p, " bytes before an allocation of ", after->second, " bytes");
  return "of device memory that is not allocated";
}

void DeviceMemory::open() {
  const std::lock_guard lock(mutex_);
  if (opened_++ > 0) return;
  for (auto& [address, bytes] : live_)
    mprotect(address, whole_pages(bytes ? bytes : 1), PROT_READ | PROT_WRITE);
}

void DeviceMemory::close() {
  const std::lock_guard lock(mutex_);
  if (--opened_ > 0) return;
  for (auto& [address, bytes] : live_)
    mprotect(address, whole_pages(bytes ? bytes : 1), PROT_NONE);
}

DeviceMemory& device_memory() {
  static DeviceMemory memory;
  return memory;
}

}  // namespace hearth::emulator
