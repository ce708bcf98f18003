// kernels/elementwise.cu, bit for bit against loops.
#include "kernels/device_array.h"

#include "kernels/elementwise.h"

namespace hearth::testing {
namespace {

class Elementwise : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, Elementwise, every_schedule(), schedule_name);

const int64_t sizes[] = {1, 7, 8, 9, 255, 2048, 2049, 40000};

template <class T>
void expect_same_bits(const std::vector<T>& actual, const std::vector<T>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(T)), 0)
        << "element " << i << " of " << actual.size();
}

TEST_P(Elementwise, CastRoundsToNearestEven) {
  for (int64_t n : sizes) {
    auto x = random_normal<float>(n, 1.0f, 1);
    x[0] = 1.0f + 1.0f / 256;  // halfway between two bf16: to the even one below
    const DeviceArray<float> from(x);
    const DeviceArray<bf16> to(n);
    kernels::cast(from.data(), to.data(), n, nullptr);
    const DeviceArray<float> back(n);
    kernels::cast(to.data(), back.data(), n, nullptr);
    std::vector<bf16> rounded;
    std::vector<float> widened;
    for (float value : x) {
      rounded.push_back(bf16(value));
      widened.push_back(static_cast<float>(rounded.back()));
    }
    EXPECT_EQ(widened[0], 1.0f);
    expect_same_bits(to.to_host(), rounded);
    expect_same_bits(back.to_host(), widened);
  }
}

template <class T>
void test_add(int64_t n) {
  const auto x = random_normal<T>(n, 1.0f, 2);
  const auto y = random_normal<T>(n, 1.0f, 3);
  const DeviceArray<T> a(x), b(y);
  kernels::add(a.data(), b.data(), a.data(), n, nullptr);  // in place
  std::vector<T> expected;
  for (size_t i = 0; i < x.size(); ++i)
    expected.push_back(T(static_cast<float>(x[i]) + static_cast<float>(y[i])));
  expect_same_bits(a.to_host(), expected);
}
TEST_P(Elementwise, Add) {
  for (int64_t n : sizes) {
    test_add<float>(n);
    test_add<bf16>(n);
  }
}

// Also of f64 scalars, and at addresses that are no multiple of 16.
TEST_P(Elementwise, CopyBytesAndFillZero) {
  const auto x = random_normal<double>(37, 1.0f, 7);
  const DeviceArray<double> from(x), to(37);
  kernels::copy_bytes(from.data() + 1, to.data() + 3, 8, nullptr);
  kernels::copy_bytes(from.data() + 5, to.data() + 5, 30 * 8, nullptr);
  kernels::fill_zero(to.data() + 35, 8, nullptr);
  kernels::fill_zero(to.data(), 0, nullptr);
  const auto y = to.to_host();
  for (size_t i = 0; i < y.size(); ++i) {
    if (i == 3) {
      EXPECT_EQ(y[i], x[1]);
    } else if (i >= 5 && i < 35) {
      EXPECT_EQ(y[i], x[i]);
    } else if (i == 35) {
      EXPECT_EQ(std::memcmp(&y[i], "\0\0\0\0\0\0\0\0", 8), 0);
    } else {
      EXPECT_TRUE(std::isnan(y[i])) << i;
    }
  }
}

template <class Add>
double add_up(int64_t n, double start, Add add) {
  const DeviceArray<double> total(std::vector<double>{start});
  const DeviceArray<double> workspace(static_cast<int64_t>(kernels::sum_workspace_bytes(n) / sizeof(double)));
  add(total.data(), workspace.data());
  return total.to_host()[0];
}

TEST_P(Elementwise, SumsOfIntegersAreExact) {
  for (int64_t n : {int64_t{1}, int64_t{9}, int64_t{32768}, int64_t{70001}}) {
    const auto x = random_integers<float>(n, 15, 5);
    const auto y = random_integers<bf16>(n, 15, 6);
    const DeviceArray<float> a(x);
    const DeviceArray<bf16> b(y);
    double sum = 100, squares_x = 100, squares_y = 100;
    for (float value : x) {
      sum += value;
      squares_x += value * value;
    }
    for (bf16 value : y)
      squares_y += static_cast<float>(value) * static_cast<float>(value);
    EXPECT_EQ(add_up(n, 100, [&](double* t, void* w) { kernels::sum(a.data(), n, t, w, nullptr); }), sum);
    EXPECT_EQ(
        add_up(n, 100, [&](double* t, void* w) { kernels::sum_of_squares(a.data(), n, t, w, nullptr); }),
        squares_x);
    EXPECT_EQ(
        add_up(n, 100, [&](double* t, void* w) { kernels::sum_of_squares(b.data(), n, t, w, nullptr); }),
        squares_y);
  }
}

}  // namespace
}  // namespace hearth::testing
