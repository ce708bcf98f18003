// Device memory: an address range of its own, so that "is this a device pointer, and within which allocation"
// has an exact answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace hearth::emulator {

class DeviceMemory {
 public:
  static constexpr size_t reserved_bytes = size_t{1} << 40;
  struct Range {
    char* begin = nullptr;
    size_t bytes = 0;
    bool contains(const void* address, size_t count) const {
      const char* p = static_cast<const char*>(address);
      return p >= begin && p + count <= begin + bytes;
    }
  };

  DeviceMemory();
  // Filled with NaN bits if `poison`; null when `limit` bytes in all would be exceeded.
  void* allocate(size_t bytes, size_t limit, bool poison);
  // False when `address` is not the start of an allocation.
  bool release(void* address);
  // The allocation that holds `address`, or an empty range.
  Range find(const void* address);
  bool covers(const void* address) const;
  // Where `address` is, for a report: "at offset 400 of an allocation of 400", "of host memory".
  std::string describe(const void* address);
  size_t offset(const void* address) const { return static_cast<const char*>(address) - base_; }
  size_t used() const { return used_; }
  // Only while kernels and copies run is device memory accessible: a host that touches it crashes,
  // as with a GPU.
  void open();
  void close();

 private:
  std::mutex mutex_;
  char* base_ = nullptr;
  size_t next_ = 0;
  size_t used_ = 0;
  int opened_ = 0;
  std::map<char*, size_t> live_;
};

DeviceMemory& device_memory();

}  // namespace hearth::emulator
