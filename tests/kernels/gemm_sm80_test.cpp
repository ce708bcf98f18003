// kernels/gemm_sm80.cu: exact with whole numbers in every layout, and the same bits under every schedule.
// gemm_test_support.h says what the tests check.
#include "kernels/gemm_test_support.h"

namespace hearth::testing {
namespace {

class GemmSm80 : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, GemmSm80, every_schedule(), schedule_name);

constexpr Engine engine = {kernels::gemm_sm80_workspace_bytes, kernels::gemm_sm80};

// ---- every schedule

TEST_P(GemmSm80, ForwardIsExact) {
  for (const Case& s : {Case{128, 128, 32, GemmTile::large}, Case{130, 136, 168, GemmTile::large},
                        Case{1, 8, 8, GemmTile::large}, Case{64, 64, 160, GemmTile::small},
                        Case{65, 72, 168, GemmTile::small}, Case{1, 8, 8, GemmTile::small}})
    for (const bool bias : {false, true})
      test_forward(engine, s, bias);
}

TEST_P(GemmSm80, InputGradientIsExact) {
  for (const Case& s : {Case{128, 128, 32, GemmTile::large}, Case{130, 136, 168, GemmTile::large},
                        Case{64, 64, 160, GemmTile::small}, Case{65, 72, 168, GemmTile::small}})
    test_input_gradient(engine, s);
}

TEST_P(GemmSm80, WeightGradientAddsExactly) {
  for (const Case& s : {Case{128, 128, 32, GemmTile::large, 1}, Case{136, 264, 163, GemmTile::large, 1},
                        Case{136, 136, 227, GemmTile::large, 3}, Case{64, 64, 160, GemmTile::small, 1},
                        Case{72, 136, 163, GemmTile::small, 1}, Case{72, 136, 163, GemmTile::small, 3},
                        Case{8, 8, 1, GemmTile::small, 1}, Case{8, 8, 300, GemmTile::small, 100}})
    for (const bool sums : {false, true})
      test_weight_gradient(engine, s, sums);
}

TEST_P(GemmSm80, GeluOfTheRoundedPreActivation) {
  test_gelu(engine, {65, 136, 40, GemmTile::small});
  test_gelu(engine, {65, 136, 40, GemmTile::large});
}

TEST_P(GemmSm80, GradientTimesGeluDerivative) {
  test_gelu_gradient(engine, {65, 136, 40, GemmTile::small});
  test_gelu_gradient(engine, {65, 136, 40, GemmTile::large});
}

// ---- one schedule

// Tiles and parts are chosen by shape; whatever is chosen is exact.
TEST(GemmSm80Shapes, OfModels) {
  test_forward(engine, {512, 192, 64}, true);
  test_forward(engine, {1023, 768, 64}, true);
  test_forward(engine, {5, 50304, 8}, false);
  test_forward(engine, {1408, 1536, 40}, false);  // large tiles, two groups of rows
  test_forward(engine, {1, 1600, 768}, true);
  test_input_gradient(engine, {63, 768, 1600});
  test_input_gradient(engine, {1000, 64, 256});
  test_weight_gradient(engine, {192, 64, 512}, true);
  test_weight_gradient(engine, {768, 768, 1023}, true);
  test_weight_gradient(engine, {50304, 8, 3}, false);
}

TEST(GemmSm80Shapes, ManyRowsOfTiles) {
  test_forward(engine, {70000, 8, 8}, true);  // more rows of tiles than gridDim.y could hold rows of 1
}

TEST(GemmSm80Shapes, EmptyProductsDoNothing) {
  Case none{0, 8, 8};
  GemmArgs args;
  args.m = 0, args.n = 8, args.k = 8;
  kernels::gemm_sm80(args, nullptr, nullptr);
  args.product = Product::weight_gradient;
  args.m = 8, args.k = 0;
  EXPECT_EQ(kernels::gemm_sm80_workspace_bytes(args), 0u);
  kernels::gemm_sm80(args, nullptr, nullptr);
  EXPECT_NO_THROW(test_forward(engine, none, false));
}

TEST(GemmSm80DeathTest, RefusesWhatItCannotDo) {
  const DeviceArray<bf16> x(64 * 64);
  GemmArgs good;
  good.m = good.n = good.k = 64;
  good.a = good.b = good.c = x.data();
  good.a_stride = good.b_stride = good.c_stride = 64;
  auto refused = [&](auto change) {
    GemmArgs args = good;
    change(args);
    EXPECT_DEATH(kernels::gemm_sm80(args, nullptr, nullptr), "gemm:");
  };
  refused([](GemmArgs& p) { p.n = 60; });
  refused([](GemmArgs& p) { p.k = 60; });
  refused([](GemmArgs& p) { p.a_stride = 68; });
  refused([](GemmArgs& p) { p.b_stride = 68; });
  refused([](GemmArgs& p) { p.c_stride = 68; });
  refused([](GemmArgs& p) { p.a += 4; });
  refused([](GemmArgs& p) { p.c = nullptr; });
  refused([](GemmArgs& p) { p.product = Product::weight_gradient; });
  refused([](GemmArgs& p) { p.pre = p.c; });
  refused([](GemmArgs& p) { p.splits = 2; });
}

// ---- numbers that round

TEST(GemmSm80Rounding, GeluOfNormalNumbers) {
  const Case s{130, 136, 264, GemmTile::large};
  Operands x(Product::forward, s, 0);
  x.set(random_normal<bf16>(s.m * s.k, 1, 1), random_normal<bf16>(s.n * s.k, 0.2f, 2));
  Matrix<bf16> pre(s.m, s.n, 8), y(s.m, s.n, 8);
  GemmArgs args = x.args();
  args.c = y.data(), args.c_stride = y.stride;
  args.pre = pre.data(), args.pre_stride = pre.stride;
  args.gelu = true;
  run(engine, args);
  pre.fetch();
  y.fetch();
  const std::vector<double> expected = x.exact();
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j) {
      const double exact = expected[i * s.n + j];
      ASSERT_NEAR(pre(i, j), exact, rounding(exact) + 1e-6 * norm_of_row(x, i));
    }
  expect_gelu(pre, y);
}

TEST(GemmSm80Rounding, GeluOfEveryBf16) {
  // All finite numbers, as a matrix of 256 x 256.
  Matrix<bf16> y(256, 256, 8);
  std::vector<bf16> all(65536);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].bits = static_cast<uint16_t>(i);
    if (!std::isfinite(static_cast<float>(all[i]))) all[i] = bf16(0.0f);
  }
  Matrix<bf16> every(all, 256, 256, 8);
  kernels::gelu_forward(every.data(), every.stride, y.data(), y.stride, 256, 256, nullptr);
  y.fetch();
  expect_gelu(every, y);

  // dx = (ones of k = 8) * gelu'
  const Case s{256, 256, 8, GemmTile::small};
  Operands x(Product::input_gradient, s, 0);
  x.set(std::vector<bf16>(256 * 8, bf16(1.0f)), std::vector<bf16>(256 * 8, bf16(1.0f)));
  Matrix<bf16> dx(256, 256, 8);
  GemmArgs args = x.args();
  args.c = dx.data(), args.c_stride = dx.stride;
  args.factor_pre = every.data(), args.pre_stride = every.stride;
  run(engine, args);
  dx.fetch();
  expect_gelu_gradient(x.exact(), every, dx, 0);
}

// The same bits whatever the schedule, where the order of additions matters.
TEST(GemmSm80Rounding, SameBitsUnderEverySchedule) {
  const Case s{136, 136, 515, GemmTile::small, 3};
  std::vector<float> first, first_sums;
  for (const Schedule& schedule : all_schedules()) {
    const WithSchedule with(schedule);
    Operands x(Product::weight_gradient, s, 0);
    x.set(random_normal<bf16>(s.m * s.k, 1, 1), random_normal<bf16>(s.n * s.k, 1, 2));
    Matrix<float> dw(random_normal<float>(s.m * s.n, 1, 3), s.m, s.n, 0),
        sums(random_normal<float>(s.m, 1, 4), 1, s.m, 0);
    const std::vector<float> before = dw.host, before_sums = sums.host;
    GemmArgs args = x.args();
    args.accumulator = dw.data(), args.c_stride = dw.stride;
    args.column_sums = sums.data();
    run(engine, args);
    dw.fetch();
    sums.fetch();
    if (first.empty()) {
      first = dw.host, first_sums = sums.host;
      const std::vector<double> product = x.exact();
      for (int64_t i = 0; i < s.m * s.n; ++i)
        ASSERT_NEAR(dw.host[i], before[i] + product[i], 1e-4);
      for (int64_t i = 0; i < s.m; ++i) {
        double exact = before_sums[i];
        for (int64_t l = 0; l < s.k; ++l)
          exact += x.a(l, i);
        ASSERT_NEAR(sums.host[i], exact, 1e-4);
      }
    }
    EXPECT_EQ(std::memcmp(first.data(), dw.host.data(), first.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(first_sums.data(), sums.host.data(), first_sums.size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace hearth::testing
