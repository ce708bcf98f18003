// What tests of row-wise kernels share: operands that exist twice, on the host for the reference
// implementation and on the device for the kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "device/device.h"
#include "device/ops.h"
#include "kernels/device_array.h"
#include "kernels/rows.h"

namespace hearth::testing {

// [rows, columns] with NaN from `columns` to `stride`.  The reference writes `host`, the kernel `device`.
template <class T>
struct RowOperand {
  // NaN: an output.
  RowOperand(int64_t rows, int64_t columns, int64_t stride = 0)
      : rows(rows),
        columns(columns),
        stride(stride ? stride : columns),
        host(static_cast<size_t>(rows * this->stride), T(std::numeric_limits<float>::quiet_NaN())),
        device(static_cast<int64_t>(host.size())) {
    device.set(host);
  }
  RowOperand(const std::vector<T>& values, int64_t rows, int64_t columns, int64_t stride = 0)
      : RowOperand(rows, columns, stride) {
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(values.begin() + r * columns, columns, host.begin() + r * this->stride);
    device.set(host);
  }

  Tensor tensor() const {
    Tensor t(const_cast<T*>(host.data()), dtype_of<T>(), {rows, columns});
    t.stride[0] = stride;
    return t;
  }
  Tensor vector() const { return Tensor(const_cast<T*>(host.data()), dtype_of<T>(), {columns}); }
  kernels::Rows<T> view() const { return {device.data(), stride}; }
  kernels::Rows<const T> input() const { return {device.data(), stride}; }
  T* data() const { return device.data(); }

  int64_t rows, columns, stride;
  std::vector<T> host;
  DeviceArray<T> device;
};

// Normally distributed.
template <class T>
RowOperand<T> random_operand(int64_t rows, int64_t columns, int64_t stride, uint64_t seed, float scale = 1,
                             float mean = 0) {
  std::vector<float> values = random_normal<float>(rows * columns, scale, seed);
  std::vector<T> shifted;
  for (float value : values)
    shifted.push_back(T(value + mean));
  return RowOperand<T>(shifted, rows, columns, stride);
}

// The kernel's result against the reference's, which rounds at the same points:
// |difference| <= relative * |expected| in the Euclidean norm.  What lies between the rows is untouched.
template <class T>
void expect_near(const RowOperand<T>& operand, double relative, const std::string& name) {
  const std::vector<T> actual = operand.device.to_host();
  double difference = 0, norm = 0;
  for (int64_t r = 0; r < operand.rows; ++r)
    for (int64_t c = 0; c < operand.stride; ++c) {
      const size_t i = static_cast<size_t>(r * operand.stride + c);
      const double a = static_cast<float>(actual[i]), e = static_cast<float>(operand.host[i]);
      if (c >= operand.columns || std::isnan(e)) {
        ASSERT_TRUE(std::isnan(a)) << name << ": written at row " << r << " column " << c;
        continue;
      }
      ASSERT_TRUE(std::isfinite(a)) << name << " row " << r << " column " << c << " is " << a << ", not "
                                    << e;
      difference += (a - e) * (a - e);
      norm += e * e;
    }
  ASSERT_LE(std::sqrt(difference), relative * std::sqrt(norm) + 1e-30)
      << name << " [" << operand.rows << ", " << operand.columns << "]";
}
template <class T>
void expect_same(const std::vector<T>& actual, const std::vector<T>& expected, const std::string& name) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(T)), 0)
        << name << " element " << i << ": " << static_cast<float>(actual[i]) << ", not "
        << static_cast<float>(expected[i]);
}

// The bounds of tests/device: a few elements near a tie round the other way.
constexpr double bf16_same = 3e-4;
constexpr double bf16_after_dropout = 1e-3;
constexpr double fp32_same = 2e-6;

// The reference implementation on the host.
inline Device& reference() {
  static const std::unique_ptr<Device> device = make_reference_device();
  return *device;
}

// StepParams on the host for the reference and on the device for the kernel.
struct Step {
  explicit Step(const StepParams& params) : host(params), device(sizeof(StepParams)) {
    std::vector<unsigned char> bytes(sizeof(StepParams));
    std::memcpy(bytes.data(), &params, sizeof params);
    device.set(bytes);
    reference().ops().set_step_params(&host);
  }
  const StepParams* data() const { return reinterpret_cast<const StepParams*>(device.data()); }
  StepParams host;
  DeviceArray<unsigned char> device;
};

}  // namespace hearth::testing
