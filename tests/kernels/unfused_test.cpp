// kernels/unfused.cu against sums and derivatives in fp64.  Rows lie in NaN.
#include "kernels/unfused.h"

#include <cmath>
#include <limits>

#include "kernels/device_array.h"

namespace hearth::testing {
namespace {

class Unfused : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, Unfused, every_schedule(), schedule_name);

struct Size {
  int64_t rows, columns;
};
const Size sizes[] = {{1, 8}, {31, 72}, {33, 64}, {70, 136}};
constexpr int64_t padding = 8;

// With NaN behind each row.
std::vector<bf16> padded(const std::vector<bf16>& values, const Size& s) {
  const bf16 nan(std::numeric_limits<float>::quiet_NaN());
  std::vector<bf16> all(static_cast<size_t>(s.rows * (s.columns + padding)), nan);
  for (int64_t i = 0; i < s.rows * s.columns; ++i)
    all[static_cast<size_t>(i / s.columns * (s.columns + padding) + i % s.columns)] = values[i];
  return all;
}

TEST_P(Unfused, ColumnSumsOfIntegersAreExact) {
  for (const Size& s : sizes) {
    const auto x = random_integers<bf16>(s.rows * s.columns, 15, 1);
    const auto before = random_integers<float>(s.columns, 1000, 2);
    const DeviceArray<bf16> device_x(padded(x, s));
    const DeviceArray<float> sums(before);
    kernels::add_column_sums(device_x.data(), s.columns + padding, s.rows, s.columns, sums.data(), nullptr);
    const auto after = sums.to_host();
    for (int64_t c = 0; c < s.columns; ++c) {
      float expected = before[c];
      for (int64_t r = 0; r < s.rows; ++r)
        expected += static_cast<float>(x[r * s.columns + c]);
      ASSERT_EQ(after[c], expected) << "column " << c << " of " << s.rows << " x " << s.columns;
    }
  }
}

double gelu_derivative(double x) {
  const double c = 0.79788456080286536, s = 1 / (1 + std::exp(-2 * c * (x + 0.044715 * x * x * x)));
  return s + 2 * x * s * (1 - s) * c * (1 + 3 * 0.044715 * x * x);
}

TEST_P(Unfused, MultipliesByTheDerivativeOfGelu) {
  for (const Size& s : sizes) {
    const auto d = random_normal<bf16>(s.rows * s.columns, 1.0f, 3);
    const auto pre = random_normal<bf16>(s.rows * s.columns, 2.0f, 4);
    const DeviceArray<bf16> device_d(padded(d, s)), device_pre(padded(pre, s));
    kernels::multiply_gelu_derivative(device_d.data(), s.columns + padding, device_pre.data(),
                                      s.columns + padding, s.rows, s.columns, nullptr);
    const auto after = device_d.to_host();
    for (int64_t i = 0; i < static_cast<int64_t>(after.size()); ++i) {
      const int64_t row = i / (s.columns + padding), column = i % (s.columns + padding);
      const float got = static_cast<float>(after[i]);
      if (column >= s.columns) {
        ASSERT_TRUE(std::isnan(got)) << "written behind row " << row;
        continue;
      }
      const int64_t at = row * s.columns + column;
      const double expected = static_cast<float>(d[at]) * gelu_derivative(static_cast<float>(pre[at]));
      ASSERT_NEAR(got, expected, std::abs(expected) / 250 + 1e-5) << row << ", " << column;
    }
  }
}

}  // namespace
}  // namespace hearth::testing
