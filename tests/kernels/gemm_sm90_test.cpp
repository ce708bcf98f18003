// kernels/gemm_sm90.cu: exact with whole numbers in every layout, the same bits under every schedule and with
// any number of blocks.  gemm_test_support.h says what the tests check.  The emulator needs about 8 ms for a
// step of a tile.
#include "kernels/gemm_test_support.h"

namespace hearth::testing {
namespace {

constexpr Engine engine = {kernels::gemm_sm90_workspace_bytes, kernels::gemm_sm90};
constexpr GemmTile only_tile = GemmTile::automatic;

// sm_90a's instructions trap on every other GPU, and nothing works in the process after that.
bool runs_here() {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major == 9 && minor == 0;
}
template <class Test>
class OnHopper : public Test {
 protected:
  void SetUp() override {
    if (!runs_here()) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  }
};
class GemmSm90Shapes : public OnHopper<::testing::Test> {};
class GemmSm90Choice : public OnHopper<::testing::Test> {};
class GemmSm90Rounding : public OnHopper<::testing::Test> {};

// A block per multiprocessor: how many pieces of work each gets.
class WithMultiprocessors {
 public:
  explicit WithMultiprocessors(int count) : before_(emulator::options().multiprocessors) {
    emulator::options().multiprocessors = count;
  }
  ~WithMultiprocessors() { emulator::options().multiprocessors = before_; }

 private:
  int before_;
};

class GemmSm90 : public OnHopper<ScheduledTest> {};
INSTANTIATE_TEST_SUITE_P(, GemmSm90, every_schedule(), schedule_name);

// ---- every schedule.  One block works on all tiles, more steps than the ring has stages.

TEST_P(GemmSm90, ForwardIsExact) {
  const WithMultiprocessors one(1);
  test_forward(engine, {130, 264, 200}, true);
  test_forward(engine, {1, 8, 8}, false);
}

TEST_P(GemmSm90, InputGradientIsExact) {
  const WithMultiprocessors one(1);
  test_input_gradient(engine, {130, 264, 136});
}

TEST_P(GemmSm90, WeightGradientAddsExactly) {
  const WithMultiprocessors one(1);
  test_weight_gradient(engine, {136, 264, 163, only_tile, 1}, true);
  test_weight_gradient(engine, {72, 264, 227, only_tile, 3}, true);
  test_weight_gradient(engine, {72, 136, 67, only_tile, 2}, false);
}

TEST_P(GemmSm90, GeluOfTheRoundedPreActivation) {
  const WithMultiprocessors one(1);
  test_gelu(engine, {131, 136, 40});
}

TEST_P(GemmSm90, GradientTimesGeluDerivative) {
  const WithMultiprocessors one(1);
  test_gelu_gradient(engine, {131, 264, 72});
}

// ---- one schedule

TEST_F(GemmSm90Shapes, OfModels) {
  test_forward(engine, {257, 768, 64}, true);
  test_forward(engine, {63, 1600, 72}, true);
  test_forward(engine, {5, 2304, 8}, false);
  test_input_gradient(engine, {63, 768, 200});
  test_input_gradient(engine, {300, 64, 256});
  test_gelu_gradient(engine, {127, 520, 128});
  test_weight_gradient(engine, {192, 64, 512}, true);
  test_weight_gradient(engine, {768, 200, 100}, true);
  test_weight_gradient(engine, {520, 8, 3}, false);
}

TEST_F(GemmSm90Shapes, ManyRowsOfTiles) {
  test_forward(engine, {2100, 264, 8}, true);  // two groups of rows of tiles, the second one not full
}

// The check build sees a read beyond it.
TEST_F(GemmSm90Shapes, BiasWithNothingBehindIt) {
  const WithSchedule checked(all_schedules().front());
  const Case s{3, 264, 8};
  const Operands x(Product::forward, s, 15);
  const ExactArray<bf16> bias(s.n);
  cudaMemset(bias.data(), 0, s.n * sizeof(bf16));
  Matrix<bf16> y(s.m, s.n, 8);
  GemmArgs args = x.args();
  args.c = y.data(), args.c_stride = y.stride;
  args.bias = bias.data();
  run(engine, args);
  y.fetch();
  expect_equal(y, x.exact(), s);
}

TEST_F(GemmSm90Shapes, EmptyProductsDoNothing) {
  GemmArgs args;
  args.m = 0, args.n = 8, args.k = 8;
  EXPECT_FALSE(kernels::gemm_sm90_supports(args));
  kernels::gemm_sm90(args, nullptr, nullptr);
  args.product = Product::weight_gradient;
  args.m = 8, args.k = 0;
  EXPECT_EQ(kernels::gemm_sm90_workspace_bytes(args), 0u);
  kernels::gemm_sm90(args, nullptr, nullptr);
}

// ---- the choice of the engine

uint64_t wgmma_of_a_product(int capability, int64_t m, GemmTile tile) {
  const int before = emulator::options().capability;
  emulator::options().capability = capability;
  emulator::reset_statistics();
  test_forward({kernels::gemm_workspace_bytes, kernels::gemm}, {m, 8, 8, tile}, true);
  emulator::options().capability = before;
  return emulator::statistics().wgmma;
}

TEST_F(GemmSm90Choice, ByShapeAndCapability) {
  if (!emulator::plays_the_gpu) GTEST_SKIP() << "a GPU has one capability and counts nothing";
  constexpr int64_t enough = 66 * 128;
  EXPECT_EQ(wgmma_of_a_product(90, enough, GemmTile::automatic), 66u * 8 * 4);
  EXPECT_EQ(wgmma_of_a_product(90, enough - 128, GemmTile::automatic), 0u);
  EXPECT_EQ(wgmma_of_a_product(90, enough, GemmTile::small), 0u);
  for (const int other : {80, 86, 89, 100, 120})
    EXPECT_EQ(wgmma_of_a_product(other, enough, GemmTile::automatic), 0u);
}

TEST_F(GemmSm90Choice, WorkspaceOfTheChosenEngine) {
  test_weight_gradient({kernels::gemm_workspace_bytes, kernels::gemm}, {2304, 768, 4, GemmTile::automatic},
                       true);  // too few tiles
  const DeviceArray<float> sums(8);
  GemmArgs args;
  args.product = Product::weight_gradient;
  args.m = 2304, args.n = 768, args.k = 65536;
  args.column_sums = sums.data();  // partial sums for each column of tiles, which are not as wide
  EXPECT_TRUE(kernels::gemm_sm90_pays(args));
  EXPECT_EQ(kernels::gemm_workspace_bytes(args), kernels::gemm_sm90_workspace_bytes(args));
  EXPECT_NE(kernels::gemm_workspace_bytes(args), kernels::gemm_sm80_workspace_bytes(args));
}

TEST(GemmSm90DeathTest, RefusesWhatTmaCannotDescribe) {
  const DeviceArray<bf16> x(8 * 8);
  GemmArgs args;
  args.m = int64_t{1} << 30, args.n = args.k = 8;
  args.a = args.b = args.c = x.data();
  args.a_stride = args.b_stride = args.c_stride = 8;
  EXPECT_DEATH(kernels::gemm_sm90(args, nullptr, nullptr), "TMA cannot describe");
}

// ---- numbers that round

struct NormalOperands : Operands {
  NormalOperands(Product product, const Case& s) : Operands(product, s, 0) {
    set(random_normal<bf16>(s.m * s.k, 1, 1), random_normal<bf16>(s.n * s.k, 0.2f, 2));
  }
};

// A weight gradient with column sums, of numbers whose sums depend on the order.
struct Gradients {
  std::vector<float> dw, sums;
  bool operator==(const Gradients& other) const {
    auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(dw, other.dw) && same(sums, other.sums);
  }
};
Gradients weight_gradient(const Engine& gemm, const Operands& x) {
  const Case& s = x.size;
  Matrix<float> dw(random_normal<float>(s.m * s.n, 1, 3), s.m, s.n, 0);
  Matrix<float> sums(random_normal<float>(s.m, 1, 4), 1, s.m, 0);
  GemmArgs args = x.args();
  args.accumulator = dw.data(), args.c_stride = dw.stride;
  args.column_sums = sums.data();
  run(gemm, args);
  dw.fetch();
  sums.fetch();
  return {dw.host, sums.host};
}

TEST_F(GemmSm90Rounding, SameBitsUnderEverySchedule) {
  const NormalOperands x(Product::weight_gradient, {72, 264, 195, only_tile, 2});
  const Gradients first = weight_gradient(engine, x);
  for (const Schedule& schedule : all_schedules()) {
    const WithSchedule with(schedule);
    EXPECT_EQ(weight_gradient(engine, x), first) << name_of(schedule);
  }
}

// Pieces are dealt out differently; none is forgotten or done twice, and no bit changes.
TEST_F(GemmSm90Rounding, SameBitsWithAnyNumberOfBlocks) {
  const NormalOperands x(Product::weight_gradient, {264, 520, 170, only_tile, 2});
  const Gradients first = weight_gradient(engine, x);
  for (const int blocks : {1, 2, 5, 7, 18, 100}) {
    const WithMultiprocessors with(blocks);
    emulator::reset_statistics();
    EXPECT_EQ(weight_gradient(engine, x), first) << blocks << " blocks";
    if (emulator::plays_the_gpu) {
      EXPECT_EQ(emulator::statistics().wgmma, 9u * 3 * 8 * 4);  // tiles, steps, warps, parts of a step
    }
  }
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double error) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], error) << i;
}

TEST_F(GemmSm90Rounding, WeightGradientAgreesWithSm80) {
  constexpr Engine sm80 = {kernels::gemm_sm80_workspace_bytes, kernels::gemm_sm80};
  const NormalOperands x(Product::weight_gradient, {136, 264, 300});
  const Gradients a = weight_gradient(engine, x), b = weight_gradient(sm80, x);
  expect_near(a.dw, b.dw, 1e-4);
  expect_near(a.sums, b.sums, 1e-4);
}

TEST_F(GemmSm90Rounding, GeluAgreesWithSm80) {
  const Case s{130, 264, 200};
  const NormalOperands x(Product::forward, s);
  Matrix<bf16> pre(s.m, s.n, 8), y(s.m, s.n, 8), pre80(s.m, s.n, 8), y80(s.m, s.n, 8);
  GemmArgs args = x.args();
  args.gelu = true;
  args.c_stride = y.stride, args.pre_stride = pre.stride;
  args.c = y.data(), args.pre = pre.data();
  kernels::gemm_sm90(args, nullptr, nullptr);
  args.c = y80.data(), args.pre = pre80.data();
  kernels::gemm_sm80(args, nullptr, nullptr);
  for (Matrix<bf16>* matrix : {&pre, &y, &pre80, &y80})
    matrix->fetch();
  const std::vector<double> expected = x.exact();
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j) {
      const double exact = expected[i * s.n + j];
      ASSERT_NEAR(pre(i, j), exact, rounding(exact) + 1e-6 * norm_of_row(x, i));
      if (pre(i, j) != pre80(i, j)) continue;
      ASSERT_EQ(y(i, j), y80(i, j)) << "gelu(" << pre(i, j) << ")";
    }
  expect_gelu(pre, y);
}

TEST_F(GemmSm90Rounding, GeluDerivativeOfEveryBf16) {
  std::vector<bf16> all(65536);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].bits = static_cast<uint16_t>(i);
    if (!std::isfinite(static_cast<float>(all[i]))) all[i] = bf16(0.0f);
  }
  Matrix<bf16> every(all, 256, 256, 8), dx(256, 256, 8);
  Operands x(Product::input_gradient, {256, 256, 8}, 0);
  x.set(std::vector<bf16>(256 * 8, bf16(1.0f)), std::vector<bf16>(256 * 8, bf16(1.0f)));
  GemmArgs args = x.args();
  args.c = dx.data(), args.c_stride = dx.stride;
  args.factor_pre = every.data(), args.pre_stride = every.stride;
  emulator::reset_statistics();
  run(engine, args);
  dx.fetch();
  EXPECT_EQ(emulator::statistics().ldmatrix_conflicts, 0u);
  expect_gelu_gradient(x.exact(), every, dx, 0);
}

}  // namespace
}  // namespace hearth::testing
