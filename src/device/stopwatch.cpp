// What a device has for benchmarks when it is the host: the steady clock, and the CPU's last cache.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "device/device.h"

namespace hearth {

namespace {

// A host device has finished an operation when the call returns.
class HostStopwatch final : public Stopwatch {
 public:
  void start() override { start_ = std::chrono::steady_clock::now(); }
  void stop() override { stop_ = std::chrono::steady_clock::now(); }
  double seconds() override { return std::chrono::duration<double>(stop_ - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_, stop_;
};

}  // namespace

std::unique_ptr<Stopwatch> Device::stopwatch() {
  return std::make_unique<HostStopwatch>();
}

uint64_t Device::cache_bytes() const {
  return static_cast<uint64_t>(std::max<long>(0, sysconf(_SC_LEVEL3_CACHE_SIZE)));
}

}  // namespace hearth
