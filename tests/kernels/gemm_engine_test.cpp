// Both GEMM engines against fp64 and against each other, in every product, epilogue and kind of tail.
//
// Matrices lie in NaN: before them, at the end of each row and after the last one.
#include "device/cuda/gemm_engine.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "kernels/device_array.h"

namespace hearth::testing {
namespace {

using cuda::GemmEngine;
using kernels::GemmArgs;
using kernels::Product;

// rows x columns with a row stride, at an address that is a multiple of 16 and of no more.
template <class T>
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, int64_t padding, std::vector<T> values = {})
      : rows_(rows),
        columns_(columns),
        stride_(columns + padding),
        values_(std::move(values)),
        device_(lead + (rows + 1) * stride_) {
    if (values_.empty()) return;
    std::vector<T> all(static_cast<size_t>(device_.size()), T(std::numeric_limits<float>::quiet_NaN()));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        all[place(r, c)] = values_[static_cast<size_t>(r * columns + c)];
    device_.set(all);
  }

  T* data() const { return device_.data() + lead; }
  int64_t stride() const { return stride_; }
  double operator()(int64_t row, int64_t column) const {
    return static_cast<float>(values_[static_cast<size_t>(row * columns_ + column)]);
  }
  // What the device holds.  Around it everything must still be NaN.
  std::vector<float> fetch() const {
    const std::vector<T> all = device_.to_host();
    std::vector<float> values;
    std::vector<bool> inside(all.size());
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < columns_; ++c) {
        values.push_back(static_cast<float>(all[place(r, c)]));
        inside[place(r, c)] = true;
      }
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(inside[i] || std::isnan(static_cast<float>(all[i]))) << "written beside a row, at " << i;
    return values;
  }

 private:
  static constexpr int64_t lead = 16 / sizeof(T);
  size_t place(int64_t row, int64_t column) const {
    return static_cast<size_t>(lead + row * stride_ + column);
  }

  int64_t rows_, columns_, stride_;
  std::vector<T> values_;
  DeviceArray<T> device_;
};

struct Size {
  int64_t m, n, k;
};
std::string name_of(const Size& s) {
  return std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
}

using Values = std::function<std::vector<bf16>(int64_t n, uint64_t seed)>;
std::vector<bf16> whole(int64_t n, uint64_t seed) {
  return random_integers<bf16>(n, 15, seed);
}
std::vector<bf16> normal(int64_t n, uint64_t seed) {
  return random_normal<bf16>(n, 0.7f, seed);
}

// A product's operands, with everything that an epilogue may want.
struct Operands {
  Operands(Product product, const Size& s, const Values& values = whole)
      : product(product),
        size(s),
        a(a_k_major() ? s.m : s.k, a_k_major() ? s.k : s.m, 8, values(s.m * s.k, 1)),
        b(b_k_major() ? s.n : s.k, b_k_major() ? s.k : s.n, 16, values(s.n * s.k, 2)),
        bias(1, s.n, 8, values(s.n, 3)),
        factor(s.m, s.n, 8, random_normal<bf16>(s.m * s.n, 2, 4)) {
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < s.k; ++l)
          sum += (a_k_major() ? a(i, l) : a(l, i)) * (b_k_major() ? b(j, l) : b(l, j));
        exact.push_back(sum);
      }
  }
  bool a_k_major() const { return product != Product::weight_gradient; }
  bool b_k_major() const { return product == Product::forward; }

  GemmArgs args() const {
    GemmArgs p;
    p.product = product;
    p.m = size.m, p.n = size.n, p.k = size.k;
    p.a = a.data(), p.b = b.data();
    p.a_stride = a.stride(), p.b_stride = b.stride();
    return p;
  }

  Product product;
  Size size;
  Matrix<bf16> a, b, bias, factor;
  std::vector<double> exact;  // A B
};

void run(GemmEngine& engine, const GemmArgs& args) {
  const ExactArray<float> workspace(static_cast<int64_t>(engine.workspace_bytes(args) / sizeof(float)));
  engine.run(args, workspace.data(), nullptr);
  cudaDeviceSynchronize();
}

double gelu_sigmoid(double x) {
  return 1 / (1 + std::exp(-2 * 0.79788456080286536 * (x + 0.044715 * x * x * x)));
}
double gelu(double x) {
  return x * gelu_sigmoid(x);
}
double gelu_derivative(double x) {
  const double s = gelu_sigmoid(x);
  return s + 2 * x * s * (1 - s) * 0.79788456080286536 * (1 + 3 * 0.044715 * x * x);
}
// Half a unit of bf16 at x, and a little for fp32.
double rounding(double x) {
  return x == 0 ? 1e-6 : std::ldexp(1.02, std::ilogb(x) - 8) + 1e-5;
}

// A library without algorithms for what it could do besides the product and a bias.  It is asked for one
// right after it was told the epilogue.
cublaslt::Epilogue told = cublaslt::Epilogue::none;
int refusals = 0;
bool refuses_with_a_status = false;
cublaslt::Status remember_epilogue(cublaslt::MatmulDesc* operation, cublaslt::DescAttribute attribute,
                                   const void* value, size_t bytes) {
  if (attribute == cublaslt::DescAttribute::epilogue) std::memcpy(&told, value, sizeof told);
  return cublaslt::load().matmul_desc_set_attribute(operation, attribute, value, bytes);
}
cublaslt::Status refuse_epilogues(cublaslt::Context* context, cublaslt::MatmulDesc* operation,
                                  cublaslt::MatrixLayout* a, cublaslt::MatrixLayout* b,
                                  cublaslt::MatrixLayout* c, cublaslt::MatrixLayout* d,
                                  cublaslt::Preference* preference, int wanted,
                                  cublaslt::HeuristicResult* results, int* found) {
  if (told == cublaslt::Epilogue::none || told == cublaslt::Epilogue::bias)
    return cublaslt::load().matmul_algo_get_heuristic(context, operation, a, b, c, d, preference, wanted,
                                                      results, found);
  *found = 0;
  ++refusals;
  refuses_with_a_status = !refuses_with_a_status;  // NVIDIA's documentation allows either
  return refuses_with_a_status ? cublaslt::Status::not_supported : cublaslt::Status::success;
}

std::unique_ptr<GemmEngine> engine_of(const std::string& name) {
  if (name != "refusing") return cuda::make_gemm_engine(name);
  cublaslt::Api api = cublaslt::load();
  api.matmul_desc_set_attribute = remember_epilogue;
  api.matmul_algo_get_heuristic = refuse_epilogues;
  return cuda::make_cublaslt_gemm(api);
}

// Only on a real GPU may there be no library.
bool cublaslt_starts() {
  const cublaslt::Api api = cublaslt::load();
  cublaslt::Context* context = nullptr;
  return api.missing.empty() && api.create(&context) == cublaslt::Status::success &&
         api.destroy(context) == cublaslt::Status::success;
}

class GemmEngines : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() != std::string("native") && !cublaslt_starts())
      GTEST_SKIP() << "cuBLASLt is not installed, or does not start";
    engine = engine_of(GetParam());
    refusals = 0;
  }
  // Whether gelu's argument is not rounded, and whether gelu' multiplies a rounded product.
  bool library() const { return std::string(GetParam()) == "cublaslt"; }
  bool refusing() const { return std::string(GetParam()) == "refusing"; }
  std::unique_ptr<GemmEngine> engine;
};
INSTANTIATE_TEST_SUITE_P(, GemmEngines, ::testing::Values("native", "cublaslt", "refusing"),
                         [](const auto& info) { return std::string(info.param); });

// No two extents are alike, and the number of tokens is no multiple of anything.
const Size forward_sizes[] = {{65, 72, 40}, {1, 8, 8}, {7, 136, 64}, {130, 8, 168}};
const Size gradient_sizes[] = {{72, 136, 65}, {8, 8, 1}, {136, 64, 7}, {64, 24, 163}};

void expect_rounded(const std::vector<float>& values, const std::vector<double>& exact) {
  ASSERT_EQ(values.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i)
    ASSERT_EQ(values[i], static_cast<float>(bf16(static_cast<float>(exact[i])))) << "element " << i;
}

TEST_P(GemmEngines, ForwardIsExact) {
  for (const Size& s : forward_sizes)
    for (const bool with_bias : {false, true}) {
      SCOPED_TRACE(name_of(s));
      Operands x(Product::forward, s);
      const Matrix<bf16> y(s.m, s.n, 24);
      GemmArgs args = x.args();
      args.c = y.data(), args.c_stride = y.stride();
      args.bias = with_bias ? x.bias.data() : nullptr;
      run(*engine, args);
      for (size_t i = 0; with_bias && i < x.exact.size(); ++i)
        x.exact[i] += x.bias(0, static_cast<int64_t>(i) % s.n);
      expect_rounded(y.fetch(), x.exact);
    }
}

TEST_P(GemmEngines, InputGradientIsExact) {
  for (const Size& s : forward_sizes) {
    SCOPED_TRACE(name_of(s));
    const Operands x(Product::input_gradient, s);
    const Matrix<bf16> dx(s.m, s.n, 8);
    GemmArgs args = x.args();
    args.c = dx.data(), args.c_stride = dx.stride();
    run(*engine, args);
    expect_rounded(dx.fetch(), x.exact);
  }
}

TEST_P(GemmEngines, WeightGradientAddsExactly) {
  for (const Size& s : gradient_sizes)
    for (const bool with_sums : {false, true}) {
      SCOPED_TRACE(name_of(s));
      const Operands x(Product::weight_gradient, s);
      const Matrix<float> dw(s.m, s.n, 8, random_integers<float>(s.m * s.n, 1000, 5));
      const Matrix<float> dbias(1, s.m, 8, random_integers<float>(s.m, 1000, 6));
      GemmArgs args = x.args();
      args.accumulator = dw.data(), args.c_stride = dw.stride();
      args.column_sums = with_sums ? dbias.data() : nullptr;
      run(*engine, args);
      const std::vector<float> got = dw.fetch(), got_sums = dbias.fetch();
      for (int64_t i = 0; i < s.m; ++i) {
        double sum = dbias(0, i);
        for (int64_t l = 0; with_sums && l < s.k; ++l)
          sum += x.a(l, i);
        ASSERT_EQ(got_sums[i], sum) << "column sum " << i;
        for (int64_t j = 0; j < s.n; ++j)
          ASSERT_EQ(got[i * s.n + j], dw(i, j) + x.exact[i * s.n + j]) << i << ", " << j;
      }
    }
}

// The native engine rounds gelu's argument first, cuBLASLt does not; each within its own rounding.
TEST_P(GemmEngines, Gelu) {
  for (const Size& s : forward_sizes)
    for (const int variant : {0, 1, 2, 3}) {
      const bool with_bias = variant & 1, with_pre = variant & 2;
      SCOPED_TRACE(name_of(s) + (with_bias ? " bias" : "") + (with_pre ? " pre" : ""));
      const Operands x(Product::forward, s, normal);
      const Matrix<bf16> y(s.m, s.n, 24), pre(s.m, s.n, 40);
      GemmArgs args = x.args();
      args.c = y.data(), args.c_stride = y.stride();
      args.bias = with_bias ? x.bias.data() : nullptr;
      args.gelu = true;
      if (with_pre) args.pre = pre.data(), args.pre_stride = pre.stride();
      run(*engine, args);
      const std::vector<float> got = y.fetch(), got_pre = pre.fetch();
      for (size_t i = 0; i < got.size(); ++i) {
        const double exact = x.exact[i] + (with_bias ? x.bias(0, static_cast<int64_t>(i) % s.n) : 0);
        ASSERT_NEAR(with_pre ? got_pre[i] : exact, exact, rounding(exact)) << "element " << i;
        const double argument = library() ? 0 : 1.13 * rounding(exact);
        ASSERT_NEAR(got[i], gelu(exact), rounding(gelu(exact)) + argument) << "element " << i;
      }
    }
}

TEST_P(GemmEngines, GradientTimesGeluDerivative) {
  for (const Size& s : forward_sizes) {
    SCOPED_TRACE(name_of(s));
    const Operands x(Product::input_gradient, s, normal);
    const Matrix<bf16> dx(s.m, s.n, 8);
    GemmArgs args = x.args();
    args.c = dx.data(), args.c_stride = dx.stride();
    args.factor_pre = x.factor.data(), args.pre_stride = x.factor.stride();
    run(*engine, args);
    const std::vector<float> got = dx.fetch();
    for (size_t i = 0; i < got.size(); ++i) {
      const double pre = x.factor(static_cast<int64_t>(i) / s.n, static_cast<int64_t>(i) % s.n);
      const double expected = x.exact[i] * gelu_derivative(pre);
      const double factor = refusing() ? 1.01 * gelu_derivative(pre) * rounding(x.exact[i]) : 0;
      ASSERT_NEAR(got[i], expected, rounding(expected) + std::abs(factor) + 1e-5 * std::abs(x.exact[i]))
          << "element " << i;
    }
  }
  EXPECT_EQ(refusals, refusing() ? 4 : 0);  // once for each problem
}

TEST_P(GemmEngines, GivesTheSameBitsAgain) {
  const Size s{72, 136, 515};
  const Operands x(Product::weight_gradient, s, normal);
  std::vector<std::vector<float>> results;
  for (int i = 0; i < 3; ++i) {
    const Matrix<float> dw(s.m, s.n, 0, random_normal<float>(s.m * s.n, 1, 5));
    const Matrix<float> sums(1, s.m, 0, random_normal<float>(s.m, 1, 6));
    GemmArgs args = x.args();
    args.accumulator = dw.data(), args.c_stride = dw.stride();
    args.column_sums = sums.data();
    run(*engine, args);
    results.push_back(dw.fetch());
    for (const float sum : sums.fetch())
      results.back().push_back(sum);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// A sum of fp32 numbers stays fp32 whatever way its parts are added.
TEST_P(GemmEngines, SumsPartsOfKInFp32) {
  const Size s{8, 8, 600};
  const Operands x(Product::forward, s, normal);
  const Matrix<bf16> y(s.m, s.n, 0);
  GemmArgs args = x.args();
  args.c = y.data(), args.c_stride = y.stride();
  run(*engine, args);
  const std::vector<float> got = y.fetch();
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], x.exact[i], rounding(x.exact[i]));
}

TEST_P(GemmEngines, EmptyProductsDoNothing) {
  GemmArgs args;
  args.m = 0, args.n = 8, args.k = 8;
  EXPECT_NO_THROW(run(*engine, args));
  args.product = Product::weight_gradient;
  args.m = 8, args.k = 0;
  EXPECT_NO_THROW(run(*engine, args));
}

// ---- the cuBLASLt engine alone

int heuristics_asked = 0;
cublaslt::Status counted_heuristic(cublaslt::Context* context, cublaslt::MatmulDesc* operation,
                                   cublaslt::MatrixLayout* a, cublaslt::MatrixLayout* b,
                                   cublaslt::MatrixLayout* c, cublaslt::MatrixLayout* d,
                                   cublaslt::Preference* preference, int wanted,
                                   cublaslt::HeuristicResult* results, int* found) {
  ++heuristics_asked;
  return cublaslt::load().matmul_algo_get_heuristic(context, operation, a, b, c, d, preference, wanted,
                                                    results, found);
}

class CublasLtGemm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cublaslt_starts()) GTEST_SKIP() << "cuBLASLt is not installed, or does not start";
  }
};

TEST_F(CublasLtGemm, ChoosesAnAlgorithmOnceForAProblem) {
  cublaslt::Api api = cublaslt::load();
  api.matmul_algo_get_heuristic = counted_heuristic;
  const auto engine = cuda::make_cublaslt_gemm(api);
  heuristics_asked = 0;
  const Operands x(Product::forward, {65, 72, 40}), other(Product::forward, {64, 72, 40});
  const auto multiply = [&](const Operands& operands, bool bias, int64_t padding) {
    const Matrix<bf16> y(operands.size.m, operands.size.n, padding);  // elsewhere each time
    GemmArgs args = operands.args();
    args.c = y.data(), args.c_stride = y.stride();
    args.bias = bias ? operands.bias.data() : nullptr;
    run(*engine, args);
  };
  for (int i = 0; i < 3; ++i)
    multiply(x, false, 0);
  EXPECT_EQ(heuristics_asked, 1);
  multiply(other, false, 0);
  EXPECT_EQ(heuristics_asked, 2) << "another number of rows";
  multiply(x, true, 0);
  EXPECT_EQ(heuristics_asked, 3) << "another epilogue";
  multiply(x, false, 8);
  EXPECT_EQ(heuristics_asked, 4) << "another stride";
  for (const bool bias : {false, true})
    multiply(x, bias, 0);
  EXPECT_EQ(heuristics_asked, 4);
}

void expect_device_error(const std::function<void()>& act, const std::string& said) {
  try {
    act();
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::device);
    EXPECT_NE(std::string(e.what()).find(said), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("device.gemm = \"native\""), std::string::npos) << e.what();
  }
}

TEST_F(CublasLtGemm, SaysWhatIsMissing) {
  cublaslt::Api api;
  api.missing = "there is no library";
  expect_device_error([&] { cuda::make_cublaslt_gemm(api); }, "there is no library");
}

TEST_F(CublasLtGemm, SaysThatTheLibraryDoesNotStart) {
  if (!emulator::plays_the_gpu) GTEST_SKIP() << "a GPU is there";
  const emulator::Options before = emulator::options();
  emulator::options().present = false;
  expect_device_error([&] { cuda::make_cublaslt_gemm(cublaslt::load()); }, "the library was not initialized");
  emulator::options() = before;
}

TEST_F(CublasLtGemm, SaysWhatTheLibraryRefuses) {
  const auto engine = cuda::make_gemm_engine("cublaslt");
  const Operands x(Product::forward, {65, 72, 40});
  const Matrix<bf16> y(65, 72, 0), pre(65, 72, 4);
  GemmArgs args = x.args();
  args.c = y.data(), args.c_stride = y.stride();
  args.gelu = true;
  args.pre = pre.data(), args.pre_stride = pre.stride();
  expect_device_error([&] { run(*engine, args); }, "forward product of 65 x 72 x 40");
}

// Where it has no algorithm for the product alone, nothing stands in.
TEST_F(CublasLtGemm, SaysThatTheLibraryHasNoAlgorithm) {
  cublaslt::Api api = cublaslt::load();
  api.matmul_algo_get_heuristic = [](cublaslt::Context*, cublaslt::MatmulDesc*, cublaslt::MatrixLayout*,
                                     cublaslt::MatrixLayout*, cublaslt::MatrixLayout*,
                                     cublaslt::MatrixLayout*, cublaslt::Preference*, int,
                                     cublaslt::HeuristicResult*, int* found) {
    *found = 0;
    return cublaslt::Status::success;
  };
  const auto engine = cuda::make_cublaslt_gemm(api);
  const Operands x(Product::weight_gradient, {8, 16, 5});
  const Matrix<float> dw(8, 16, 0), sums(1, 8, 0);
  GemmArgs args = x.args();
  args.accumulator = dw.data(), args.c_stride = dw.stride();
  args.column_sums = sums.data();
  expect_device_error([&] { run(*engine, args); }, "weight gradient product of 8 x 16 x 5 with epilogue 1 ");
}

TEST(GemmEngine, IsChosenByName) {
  EXPECT_EQ(cuda::make_gemm_engine("native")->description(), "native kernels");
  if (cublaslt_starts()) {
    EXPECT_TRUE(cuda::make_gemm_engine("cublaslt")->description().starts_with("cuBLASLt 1"));
  }
  try {
    cuda::make_gemm_engine("cutlass");
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_STREQ(e.what(), "device.gemm = \"cutlass\", expected native or cublaslt");
  }
}

}  // namespace
}  // namespace hearth::testing
