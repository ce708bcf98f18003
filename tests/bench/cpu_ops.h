// What the CPU benchmarks share: one device per thread count, filled tensors, and the two shapes to measure.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "device/device.h"
#include "device/ops.h"

namespace hearth::bench {

// A device with some tensors; everything is freed at the end of the benchmark.
class Workbench {
 public:
  Workbench(DType compute, int threads = 1);

  Ops& ops() { return device_->ops(); }
  DType compute() const { return compute_; }
  // Filled with normal numbers times `scale`.
  Tensor make(DType dtype, const Shape& shape, float scale = 1);
  Tensor activation(const Shape& shape, float scale = 1) { return make(compute_, shape, scale); }
  Tensor master(const Shape& shape, float scale = 1) { return make(DType::f32, shape, scale); }
  Tensor indices(int64_t count, int32_t limit);

 private:
  std::unique_ptr<Device> device_;
  DType compute_;
  std::vector<Buffer> buffers_;
  Buffer step_;
  uint64_t random_ = 1;
};

// The sizes of one training step.
struct StepShape {
  int64_t batch, time, channels, heads, vocab;
  int64_t rows() const { return batch * time; }
  int64_t head_size() const { return channels / heads; }
};
inline constexpr StepShape small{12, 64, 128, 4, 128};     // configs/shakespeare-char-cpu.toml
inline constexpr StepShape gpt2{1, 1024, 768, 12, 50304};  // gpt2-124m, one sequence

inline const StepShape& shape_of(int64_t index) {
  return index == 0 ? small : gpt2;
}
inline DType type_of(int64_t index) {
  return index == 0 ? DType::f32 : DType::bf16;
}

inline void count_flops(benchmark::State& state, double flops) {
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}
inline void count_bytes(benchmark::State& state, double bytes) {
  state.counters["B/s"] = benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
}

// Arguments {shape, type}: both shapes in both types.
inline void both_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"gpt2", "bf16"})->ArgsProduct({{0, 1}, {0, 1}})->Unit(benchmark::kMicrosecond)->MinTime(0.2);
}

}  // namespace hearth::bench
