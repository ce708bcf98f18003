// Offsets beyond 2^31 elements and more rows than a grid's y has blocks.
//
// Three rows so far apart that the last one begins at 2^32 elements: only the pages that are touched exist.
// Whatever computes row * stride in 32 bits leaves the allocation or finds other values; the results must be
// those of rows that lie side by side, bit for bit.
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/residual_norm.h"
#include "kernels/rows_test_support.h"

namespace hearth::testing {
namespace {

constexpr int64_t far_apart = (int64_t{1} << 31) + 8;

// `rows` rows of `columns`, `stride` apart; input values, or nothing.
template <class T>
class SparseRows {
 public:
  SparseRows(int64_t rows, int64_t columns, int64_t stride, const std::vector<T>& values = {})
      : rows_(rows), columns_(columns), stride_(stride), memory_((rows - 1) * stride + columns) {
    for (int64_t r = 0; r < rows && !values.empty(); ++r)
      cudaMemcpy(memory_.data() + r * stride, values.data() + r * columns,
                 static_cast<size_t>(columns) * sizeof(T), cudaMemcpyHostToDevice);
  }
  T* data() const { return memory_.data(); }
  int64_t stride() const { return stride_; }
  kernels::Rows<T> view() const { return {data(), stride_}; }
  kernels::Rows<const T> input() const { return {data(), stride_}; }
  // Appends the values to `bits`, which fp32 holds exactly.
  void append_to(std::vector<float>& bits) const {
    cudaDeviceSynchronize();
    for (int64_t r = 0; r < rows_; ++r) {
      std::vector<T> row(static_cast<size_t>(columns_));
      cudaMemcpy(row.data(), data() + r * stride_, row.size() * sizeof(T), cudaMemcpyDeviceToHost);
      for (T value : row)
        bits.push_back(static_cast<float>(value));
    }
  }

 private:
  int64_t rows_, columns_, stride_;
  ExactArray<T> memory_;
};

class FarRows : public ::testing::Test {
 protected:
  FarRows() : before_(emulator::options()) {
    emulator::options().poison = false;  // it would touch every page
    emulator::options().memory_bytes = size_t{200} << 30;
  }
  ~FarRows() override { emulator::options() = before_; }
  void SetUp() override {
    if (!emulator::plays_the_gpu) GTEST_SKIP() << "few GPUs have room for rows so far apart";
  }

  // The same bits with rows side by side and far apart.
  template <class Run>
  static void expect_same_far_apart(int64_t columns, const Run& run) {
    const std::vector<float> near = run(columns), far = run(far_apart);
    ASSERT_FALSE(near.empty());
    EXPECT_TRUE(near == far) << "the distance between rows changes the result";
    EXPECT_TRUE(std::all_of(near.begin(), near.end(), [](float x) { return std::isfinite(x); }));
  }

 private:
  emulator::Options before_;
};

std::vector<bf16> numbers(int64_t n, uint64_t seed) {
  return random_normal<bf16>(n, 1, seed);
}

TEST_F(FarRows, Gemm) {
  for (const kernels::Product product :
       {kernels::Product::forward, kernels::Product::input_gradient, kernels::Product::weight_gradient})
    expect_same_far_apart(8, [product](int64_t stride) {
      // A is [3, 8]; so is the result, but for a weight gradient's, which is [8, 8].
      const bool gradient = product == kernels::Product::weight_gradient;
      const SparseRows<bf16> a(3, 8, stride, numbers(24, 1));
      const SparseRows<bf16> b(gradient ? 3 : 8, 8, gradient ? stride : 8, numbers(gradient ? 24 : 64, 2));
      const SparseRows<bf16> c(3, 8, stride);
      const SparseRows<float> dw(8, 8, 8, std::vector<float>(64, 1.0f));
      kernels::GemmArgs args;
      args.product = product;
      args.m = gradient ? 8 : 3;
      args.n = 8;
      args.k = gradient ? 3 : 8;
      args.a = a.data(), args.a_stride = a.stride();
      args.b = b.data(), args.b_stride = b.stride();
      args.c = gradient ? nullptr : c.data();
      args.accumulator = gradient ? dw.data() : nullptr;
      args.c_stride = gradient ? 8 : c.stride();
      const DeviceArray<char> workspace(static_cast<int64_t>(kernels::gemm_workspace_bytes(args)));
      kernels::gemm(args, workspace.data(), nullptr);
      std::vector<float> bits;
      if (gradient)
        dw.append_to(bits);
      else
        c.append_to(bits);
      return bits;
    });
}

TEST_F(FarRows, ResidualNorm) {
  expect_same_far_apart(16, [](int64_t stride) {
    const SparseRows<bf16> residual(3, 16, stride, numbers(48, 1)), branch(3, 16, stride, numbers(48, 2));
    const SparseRows<bf16> sum(3, 16, stride), normed(3, 16, stride), d(3, 16, stride, numbers(48, 3));
    const SparseRows<bf16> d_branch(3, 16, stride);
    const SparseRows<bf16> weight(1, 16, 16, numbers(16, 4));
    const SparseRows<float> mean(1, 3, 3), rstd(1, 3, 3), d_weight(1, 16, 16, std::vector<float>(16, 0.0f));
    kernels::ResidualNorm p;
    p.rows = 3, p.channels = 16;
    p.residual = residual.input(), p.branch = branch.input(), p.residual_out = sum.view();
    p.weight = weight.data(), p.normed = normed.view(), p.mean = mean.data(), p.rstd = rstd.data();
    kernels::residual_norm_forward(p, {}, nullptr, nullptr);
    kernels::ResidualNormBackward q;
    q.rows = 3, q.channels = 16;
    q.d_normed = normed.input(), q.d_residual = d.view(), q.x = sum.input(), q.d_branch = d_branch.view();
    q.mean = mean.data(), q.rstd = rstd.data(), q.weight = weight.data(), q.d_weight = d_weight.data();
    const DeviceArray<char> workspace(
        static_cast<int64_t>(kernels::residual_norm_backward_workspace_bytes(3, 16)));
    kernels::residual_norm_backward(q, {}, nullptr, workspace.data(), nullptr);
    std::vector<float> bits;
    for (const auto* x : {&sum, &normed, &d, &d_branch})
      x->append_to(bits);
    d_weight.append_to(bits);
    return bits;
  });
}

TEST_F(FarRows, CrossEntropy) {
  expect_same_far_apart(16, [](int64_t stride) {
    const Step step({.loss_scale = 0.5});
    const SparseRows<bf16> logits(3, 16, stride, numbers(48, 1)), gradient(3, 16, stride);
    const SparseRows<int32_t> targets(1, 3, 3, {0, 15, 7});
    const SparseRows<float> stats(3, 3, 3), losses(1, 3, 3);
    const kernels::CrossEntropyStatistics view{stats.data(), stats.data() + 3, stats.data() + 6};
    kernels::cross_entropy_statistics(logits.input(), targets.data(), {0, 16}, view, 3, 16, nullptr);
    kernels::cross_entropy_finish(logits.input(), targets.data(), {0, 16}, view, losses.data(),
                                  gradient.view(), step.data(), 3, 16, nullptr);
    std::vector<float> bits;
    stats.append_to(bits);
    losses.append_to(bits);
    gradient.append_to(bits);
    return bits;
  });
}

TEST_F(FarRows, Embedding) {
  expect_same_far_apart(8, [](int64_t stride) {
    const SparseRows<bf16> table(3, 8, stride, numbers(24, 1)), out(3, 8, stride);
    const SparseRows<float> dtable(3, 8, stride, std::vector<float>(24, 1.0f));
    const SparseRows<int32_t> tokens(1, 3, 3, {2, 0, 2});
    kernels::embed_tokens(tokens.data(), table.input(), 0, 3, out.view(), 3, 8, nullptr);
    kernels::embed_tokens_backward(tokens.data(), out.input(), 0, dtable.view(), 3, 3, 8, nullptr);
    kernels::embed_positions(out.view(), tokens.data(), table.input(), 3, 3, 8, {}, nullptr, nullptr);
    std::vector<float> bits;
    out.append_to(bits);
    dtable.append_to(bits);
    return bits;
  });
}

TEST_F(FarRows, Attention) {
  expect_same_far_apart(16, [](int64_t stride) {
    const SparseRows<bf16> q(3, 16, stride, numbers(48, 1)), k(3, 16, stride, numbers(48, 2)),
        v(3, 16, stride, numbers(48, 3)), out(3, 16, stride), dq(3, 16, stride), dk(3, 16, stride),
        dv(3, 16, stride), decoded(1, 16, 16);
    const SparseRows<float> lse(1, 3, 3), delta(1, 3, 3);
    const auto heads = [](const SparseRows<bf16>& x) {
      return kernels::HeadsView<bf16>{x.data(), 3 * x.stride(), x.stride(), 16};
    };
    const kernels::AttentionShape shape{1, 3, 1, 1, 16};
    kernels::attention_forward(shape, heads(q), heads(k), heads(v), heads(out), lse.data(), nullptr);
    kernels::attention_backward(shape, heads(q), heads(k), heads(v), heads(out), heads(out), lse.data(),
                                delta.data(), heads(dq), heads(dk), heads(dv), nullptr);
    kernels::attention_decode(shape, heads(q), heads(k), heads(v), heads(decoded), nullptr);
    std::vector<float> bits;
    for (const auto* x : {&out, &dq, &dk, &dv, &decoded})
      x->append_to(bits);
    return bits;
  });
}

// More rows than gridDim.y can count; residual_norm_test and gemm_sm80_test do the same for theirs.
TEST(ManyRows, CrossEntropyAndEmbedding) {
  constexpr int64_t N = 65600;
  const auto logits = random_operand<bf16>(N, 8, 8, 1, 2);
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < N; ++r)
    ids.push_back(static_cast<int32_t>(r % 8));
  const RowOperand<int32_t> targets(ids, 1, N);
  const RowOperand<float> stats(3, N), losses(1, N);
  const kernels::CrossEntropyStatistics view{stats.data(), stats.data() + N, stats.data() + 2 * N};
  kernels::cross_entropy_statistics(logits.input(), targets.data(), {0, 8}, view, N, 8, nullptr);
  kernels::cross_entropy_finish(logits.input(), targets.data(), {0, 8}, view, losses.data(), {}, nullptr, N,
                                8, nullptr);
  Ops& ops = reference().ops();
  ops.cross_entropy_statistics(logits.tensor(), targets.vector(), {0, 8}, stats.tensor());
  ops.cross_entropy_finish(logits.tensor(), targets.vector(), {0, 8}, stats.tensor(), losses.vector(), {});
  expect_near(losses, fp32_same, "losses");

  const auto table = random_operand<bf16>(8, 8, 8, 2);
  const RowOperand<bf16> out(N, 8);
  kernels::embed_tokens(targets.data(), table.input(), 0, 8, out.view(), N, 8, nullptr);
  ops.embed_tokens(targets.vector(), table.tensor(), 0, out.tensor());
  expect_near(out, 0, "embedding");
}

}  // namespace
}  // namespace hearth::testing
