// Devices and tensors for the CPU benchmarks.
#include <cmath>

#include "base/philox.h"
#include "cpu_ops.h"

namespace hearth::bench {

Workbench::Workbench(DType compute, int threads)
    : device_(make_cpu_device(threads)), compute_(compute), step_(*device_, sizeof(StepParams)) {
  auto* params = static_cast<StepParams*>(step_.data());
  *params = {};
  params->learning_rate = 1e-3;
  params->bias_correction1 = 0.1;
  params->bias_correction2 = 0.05;
  params->loss_scale = 1e-3;
  device_->ops().set_step_params(params);
}

Tensor Workbench::make(DType dtype, const Shape& shape, float scale) {
  Tensor t(nullptr, dtype, shape);
  buffers_.emplace_back(*device_, static_cast<size_t>(t.bytes()));
  t.data = buffers_.back().data();
  const PhiloxKey key = random_key(random_++, RandomDomain::init, 0);
  // Random numbers repeat after 1 Mi elements: making them must not take longer than the benchmark.
  for (int64_t i = 0; i < t.elements(); ++i) {
    const int64_t period = 1 << 20;
    const bool made = i >= period;
    if (dtype == DType::bf16) {
      auto* out = t.as<bf16>();
      out[i] =
          made ? out[i - period]
               : bf16(scale * static_cast<float>(normal4(random_block(key, static_cast<uint64_t>(i)))[0]));
    } else {
      auto* out = t.as<float>();
      out[i] = made ? out[i - period]
                    : scale * static_cast<float>(normal4(random_block(key, static_cast<uint64_t>(i)))[0]);
    }
  }
  return t;
}

Tensor Workbench::indices(int64_t count, int32_t limit) {
  Tensor t(nullptr, DType::i32, {count});
  buffers_.emplace_back(*device_, static_cast<size_t>(t.bytes()));
  t.data = buffers_.back().data();
  for (int64_t i = 0; i < count; ++i)
    t.as<int32_t>()[i] = static_cast<int32_t>(i * 7919 % limit);
  return t;
}

}  // namespace hearth::bench
