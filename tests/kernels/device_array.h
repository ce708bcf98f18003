// What kernel tests share: arrays on the device with canaries, the emulator's schedules, exact test data.
//
// The same tests run on the emulator (build/hearth-kernel-tests) and on a real GPU (build/hearth-gpu-tests),
// where tests/gpu/emulator/emulator.h takes the emulator's place: there is one schedule there, the GPU's own.
#pragma once

#include <gtest/gtest.h>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "emulator/emulator.h"
#include "tensor/dtype.h"

namespace hearth::testing {

// A call of the runtime that has to succeed.
inline void expect_success(cudaError_t status, const char* call) {
  ASSERT_EQ(status, cudaSuccess) << call << ": " << cudaGetErrorString(status);
}

// n elements of device memory, NaN bits at first.  Only `to_host` and `set` touch them, through the runtime.
// 256 bytes before and after are canaries: `to_host` checks that no kernel wrote there.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t n) : n_(n) {
    expect_success(cudaMalloc(&base_, total_bytes()), "cudaMalloc");
    expect_success(cudaMemset(base_, 0xff, total_bytes()), "cudaMemset");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(static_cast<int64_t>(values.size())) {
    set(values);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(base_); }

  T* data() const { return reinterpret_cast<T*>(base_ + canary); }
  int64_t size() const { return n_; }
  void set(const std::vector<T>& values) {
    expect_success(
        cudaMemcpy(data(), values.data(), static_cast<size_t>(n_) * sizeof(T), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  }
  // Waits for everything queued.
  std::vector<T> to_host() const {
    expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<unsigned char> all(total_bytes());
    expect_success(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (size_t i = 0; i < canary; ++i) {
      EXPECT_EQ(all[i], 0xff) << "a kernel wrote " << canary - i << " bytes before the array";
      EXPECT_EQ(all[all.size() - 1 - i], 0xff) << "a kernel wrote " << canary - i << " bytes after the array";
    }
    std::vector<T> values(static_cast<size_t>(n_));
    if (n_) std::memcpy(values.data(), all.data() + canary, values.size() * sizeof(T));
    return values;
  }

 private:
  static constexpr size_t canary = 256;
  size_t total_bytes() const { return static_cast<size_t>(n_) * sizeof(T) + 2 * canary; }

  int64_t n_;
  char* base_ = nullptr;
};

// An allocation of exactly n elements without canaries, for tests of bounds.
template <class T>
class ExactArray {
 public:
  explicit ExactArray(int64_t n) { cudaMalloc(&data_, static_cast<size_t>(n) * sizeof(T)); }
  ExactArray(const ExactArray&) = delete;
  ExactArray& operator=(const ExactArray&) = delete;
  ~ExactArray() { release(); }
  void release() { cudaFree(std::exchange(data_, nullptr)); }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

// A way to run kernels.  Results must not depend on it.
struct Schedule {
  emulator::Order order;
  emulator::Async async;
};
inline std::string name_of(const Schedule& s) {
  if (!emulator::plays_the_gpu) return "gpu";
  const char* orders[] = {"forward", "reverse", "random"};
  const char* asyncs[] = {"eager", "lazy", "random"};
  return std::string(orders[static_cast<int>(s.order)]) + "_" + asyncs[static_cast<int>(s.async)];
}
inline std::vector<Schedule> all_schedules() {
  using emulator::Async;
  using emulator::Order;
  std::vector<Schedule> all;
  if (!emulator::plays_the_gpu) return {{Order::forward, Async::eager}};
  for (Order order : {Order::forward, Order::reverse, Order::random})
    for (Async async : {Async::eager, Async::lazy, Async::random})
      all.push_back({order, async});
  return all;
}

// Sets the emulator's options for one test and restores them.  In the check build the race detector is on.
class WithSchedule {
 public:
  explicit WithSchedule(const Schedule& s) : before_(emulator::options()) {
    emulator::options().order = s.order;
    emulator::options().async = s.async;
    emulator::options().check = emulator::sees_global_accesses();
  }
  ~WithSchedule() { emulator::options() = before_; }

 private:
  emulator::Options before_;
};

// Tests that run under every schedule: TEST_P(Suite, Name) with Suite derived from this, and
// INSTANTIATE_TEST_SUITE_P(, Suite, every_schedule(), schedule_name).
class ScheduledTest : public ::testing::TestWithParam<Schedule> {
 protected:
  ScheduledTest() : schedule_(GetParam()) {}

 private:
  WithSchedule schedule_;
};
inline auto every_schedule() {
  return ::testing::ValuesIn(all_schedules());
}
inline std::string schedule_name(const ::testing::TestParamInfo<Schedule>& info) {
  return name_of(info.param);
}

// Whole numbers from -limit to limit: sums of their products are exact in fp32, whatever the order.
template <class T>
std::vector<T> random_integers(int64_t n, int limit, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> pick(-limit, limit);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& value : values)
    value = T(static_cast<float>(pick(random)));
  return values;
}
template <class T>
std::vector<T> random_normal(int64_t n, float scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> pick(0.0f, scale);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& value : values)
    value = T(pick(random));
  return values;
}

}  // namespace hearth::testing
