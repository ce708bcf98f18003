// kernels/gemm_sm80.cu: exact with whole numbers, the same bits under every schedule.
#include "kernels/device_array.h"

#include "kernels/kernels.h"

namespace hearth::testing {
namespace {

class GemmSm80 : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, GemmSm80, every_schedule(), schedule_name);

struct Shape3 {
  int64_t m, n, k;
};

// Rows are followed by NaN up to the stride, and the matrix by NaN rows, which a wrong bound would pull in.
std::vector<bf16> padded(const std::vector<bf16>& x, int64_t rows, int64_t columns, int64_t stride) {
  std::vector<bf16> out(static_cast<size_t>((rows + 2) * stride));
  for (bf16& value : out)
    value.bits = 0x7fff;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      out[r * stride + c] = x[r * columns + c];
  return out;
}

template <class Output>
void test_product(const Shape3& s) {
  const int64_t lda = s.k + 8, ldb = s.k + 16, ldc = s.n + 8;
  const auto a = random_integers<bf16>(s.m * s.k, 15, 1);
  const auto b = random_integers<bf16>(s.n * s.k, 15, 2);
  const DeviceArray<bf16> device_a(padded(a, s.m, s.k, lda)), device_b(padded(b, s.n, s.k, ldb));
  const DeviceArray<Output> device_c(s.m * ldc);
  kernels::gemm_nt(device_a.data(), device_b.data(), device_c.data(), s.m, s.n, s.k, lda, ldb, ldc, nullptr);
  const auto c = device_c.to_host();
  std::vector<int> ia, ib;
  for (bf16 value : a)
    ia.push_back(static_cast<int>(static_cast<float>(value)));
  for (bf16 value : b)
    ib.push_back(static_cast<int>(static_cast<float>(value)));
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < ldc; ++j) {
      const float actual = static_cast<float>(c[i * ldc + j]);
      if (j >= s.n) {
        ASSERT_TRUE(std::isnan(actual)) << "written beyond the row: " << i << ", " << j;
        continue;
      }
      int64_t exact = 0;
      for (int64_t k = 0; k < s.k; ++k)
        exact += ia[i * s.k + k] * ib[j * s.k + k];
      const float expected = static_cast<float>(Output(static_cast<float>(exact)));
      ASSERT_EQ(actual, expected) << "row " << i << " column " << j << " of " << s.m << "x" << s.n << "x"
                                  << s.k;
    }
}

TEST_P(GemmSm80, WholeNumbersAreExact) {
  for (const Shape3& shape :
       {Shape3{128, 128, 32}, Shape3{1, 8, 8}, Shape3{130, 136, 72}, Shape3{64, 200, 264}}) {
    test_product<float>(shape);
    test_product<bf16>(shape);
  }
}

}  // namespace
}  // namespace hearth::testing
