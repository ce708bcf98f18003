// kernels/residual_norm.cu against the reference implementation, with every option of the operation.
#include "kernels/residual_norm.h"

#include "kernels/rows_test_support.h"

namespace hearth::testing {
namespace {

class ResidualNorm : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, ResidualNorm, every_schedule(), schedule_name);

struct Size {
  int64_t samples, time, channels;
};
// One column vector per row; ragged rows and columns; more than one warp; GPT-2's 768 and 1600.
const Size small_sizes[] = {{1, 1, 8}, {2, 31, 64}, {1, 63, 104}, {3, 3, 768}, {1, 5, 1600}};

Dropout dropout(double probability, int64_t time) {
  Dropout d;
  d.probability = probability;
  d.seed = 1234;
  d.layer = 3;
  d.site = DropoutSite::mlp;
  d.sample_offset = 5;
  d.time = time;
  d.first_row = 7;
  return d;
}
const StepParams step_params{.first_sample = 70};

struct ForwardCase {
  bool branch = true, branch_bias = true, norm = true, norm_bias = true, in_place = false;
  double dropout = 0;
  int64_t gap = 0;
  float mean = 0;  // of the residual
};

double bound(double probability) {
  return probability == 0 || probability == 0.5 ? bf16_same : bf16_after_dropout;
}

void test_forward(const Size& s, const ForwardCase& c) {
  const int64_t N = s.samples * s.time, C = s.channels, stride = C + c.gap;
  const Step step(step_params);
  const auto residual = random_operand<bf16>(N, C, stride, 1, 1, c.mean);
  const auto branch = random_operand<bf16>(N, C, stride, 2);
  const auto branch_bias = random_operand<bf16>(1, C, C, 3);
  const auto weight = random_operand<bf16>(1, C, C, 4, 0.2f, 1);
  const auto bias = random_operand<bf16>(1, C, C, 5);
  const RowOperand<bf16> sum(N, C, stride), normed(N, C, stride), again(N, C, stride);
  const RowOperand<float> mean(1, N), rstd(1, N);
  const RowOperand<bf16>& out = c.in_place ? residual : sum;

  Ops::ResidualNorm r;
  kernels::ResidualNorm k;
  r.residual = residual.tensor();
  k.residual = residual.input();
  k.rows = N;
  k.channels = C;
  r.residual_out = out.tensor();  // without a branch it must stay NaN
  k.residual_out = out.view();
  r.dropout = dropout(c.dropout, s.time);
  if (c.branch) r.branch = branch.tensor(), k.branch = branch.input();
  if (c.branch && c.branch_bias) r.branch_bias = branch_bias.vector(), k.branch_bias = branch_bias.data();
  if (c.norm) {
    r.weight = weight.vector(), k.weight = weight.data();
    if (c.norm_bias) r.bias = bias.vector(), k.bias = bias.data();
    r.normed = normed.tensor(), k.normed = normed.view();
    r.mean = mean.vector(), k.mean = mean.data();
    r.rstd = rstd.vector(), k.rstd = rstd.data();
  }
  kernels::residual_norm_forward(k, r.dropout, step.data(), nullptr);
  if (c.norm)
    kernels::norm_apply(c.branch ? out.input() : residual.input(), mean.data(), rstd.data(), weight.data(),
                        c.norm_bias ? bias.data() : nullptr, again.view(), N, C, nullptr);
  reference().ops().residual_norm_forward(r);

  expect_near(out, bound(c.dropout), "residual_out");
  if (!c.norm) return;
  // The statistics are of a rounded sum, of which a few elements may differ.
  const bool exact_input = !c.branch;
  expect_near(mean, exact_input ? 2e-5 : 2e-3, "mean");
  expect_near(rstd, exact_input ? 2e-6 : 1e-3, "rstd");
  expect_near(normed, 2 * bound(c.dropout) + (C == 8 ? 2e-3 : 0), "normed");
  expect_same(again.device.to_host(), normed.device.to_host(), "recomputed");
}

TEST_P(ResidualNorm, Forward) {
  for (const Size& size : small_sizes) {
    test_forward(size, {});
    test_forward(size, {.dropout = 0.1, .gap = 8});
    test_forward(size, {.branch_bias = false, .norm_bias = false, .in_place = true, .dropout = 0.5});
    test_forward(size, {.branch = false, .gap = 8});
    test_forward(size, {.norm = false, .dropout = 0.1});
  }
}

// Sums around the mean, not of squares: a mean of 1000 costs no digits.
TEST(ResidualNormOnce, ForwardWithALargeMean) {
  test_forward({1, 9, 768}, {.branch = false, .mean = 1000});
  test_forward({1, 9, 1000}, {.branch_bias = false, .mean = 1000});
}

// Rows over several blocks, and so wide that a block has fewer warps.
TEST(ResidualNormOnce, ForwardLarge) {
  test_forward({4, 61, 768}, {.dropout = 0.1});
  test_forward({1, 13, 4096}, {});
  test_forward({1, 7, 8192}, {.dropout = 0.5, .gap = 16});
}

TEST(ResidualNormOnce, ForwardOfManyRows) {
  test_forward({1, 65600, 8}, {.dropout = 0.1});
}

enum class Branch { none, own, same };

struct BackwardCase {
  bool norm = true, accumulate = true, norm_bias = true;
  Branch branch = Branch::own;
  bool branch_bias = true;
  double dropout = 0;
  int64_t gap = 0;
};

std::vector<float> test_backward(const Size& s, const BackwardCase& c) {
  const int64_t N = s.samples * s.time, C = s.channels, stride = C + c.gap;
  const Step step(step_params);
  const auto d_normed = random_operand<bf16>(N, C, stride, 1);
  // What is not read stays NaN.
  const auto d_residual =
      c.accumulate || !c.norm ? random_operand<bf16>(N, C, stride, 2) : RowOperand<bf16>(N, C, stride);
  const auto x = random_operand<bf16>(N, C, stride, 3, 1.5f, 0.5f);
  const auto mean = random_operand<float>(1, N, N, 4, 0.1f, 0.5f);
  const auto rstd = random_operand<float>(1, N, N, 5, 0.05f, 0.7f);
  const auto weight = random_operand<bf16>(1, C, C, 6, 0.2f, 1);
  const auto d_weight = random_operand<float>(1, C, C, 7), d_bias = random_operand<float>(1, C, C, 8);
  const auto d_branch_bias = random_operand<float>(1, C, C, 9);
  const RowOperand<bf16> own_branch(N, C, stride);

  Ops::ResidualNormBackward r;
  kernels::ResidualNormBackward k;
  k.rows = N;
  k.channels = C;
  r.d_residual = d_residual.tensor(), k.d_residual = d_residual.view();
  r.accumulate = k.accumulate = c.accumulate;
  r.dropout = dropout(c.dropout, s.time);
  if (c.norm) {
    r.d_normed = d_normed.tensor(), k.d_normed = d_normed.input();
    r.x = x.tensor(), k.x = x.input();
    r.mean = mean.vector(), k.mean = mean.data();
    r.rstd = rstd.vector(), k.rstd = rstd.data();
    r.weight = weight.vector(), k.weight = weight.data();
    r.d_weight = d_weight.vector(), k.d_weight = d_weight.data();
    if (c.norm_bias) r.d_bias = d_bias.vector(), k.d_bias = d_bias.data();
  }
  if (c.branch == Branch::own) r.d_branch = own_branch.tensor(), k.d_branch = own_branch.view();
  if (c.branch == Branch::same) r.d_branch = d_residual.tensor(), k.d_branch = d_residual.view();
  if (c.branch != Branch::none && c.branch_bias)
    r.d_branch_bias = d_branch_bias.vector(), k.d_branch_bias = d_branch_bias.data();

  const DeviceArray<float> workspace(
      static_cast<int64_t>(kernels::residual_norm_backward_workspace_bytes(N, C) / sizeof(float)));
  kernels::residual_norm_backward(k, r.dropout, step.data(), workspace.data(), nullptr);
  reference().ops().residual_norm_backward(r);

  expect_near(d_residual, bf16_same, "d_residual");
  expect_near(own_branch, bound(c.dropout), "d_branch");
  expect_near(d_weight, 2e-6, "d_weight");
  expect_near(d_bias, 2e-6, "d_bias");
  expect_near(d_branch_bias, 2e-3, "d_branch_bias");  // of rounded values, a few of which may differ
  workspace.to_host();                                // its canaries
  std::vector<float> bits;
  for (const auto* gradient : {&d_weight, &d_bias, &d_branch_bias})
    for (float value : gradient->device.to_host())
      bits.push_back(value);
  for (bf16 value : d_residual.device.to_host())
    bits.push_back(static_cast<float>(value));
  return bits;
}

TEST_P(ResidualNorm, Backward) {
  for (const Size& size : small_sizes) {
    test_backward(size, {});
    test_backward(size, {.accumulate = false, .dropout = 0.1, .gap = 8});
    test_backward(size, {.norm_bias = false, .branch = Branch::same});
    test_backward(size, {.branch = Branch::none, .gap = 8});
    test_backward(size, {.norm = false, .dropout = 0.5});
    test_backward(size, {.norm = false, .branch = Branch::same});
    test_backward(size, {.norm = false, .branch_bias = false});
  }
}

TEST_P(ResidualNorm, BitsDoNotDependOnTheSchedule) {
  const Size size = {1, 37, 520};
  std::vector<float> expected;
  {
    const WithSchedule plain({emulator::Order::forward, emulator::Async::eager});
    expected = test_backward(size, {.gap = 8});
  }
  expect_same(test_backward(size, {.gap = 8}), expected, "gradient");
}

// Two and four vectors of columns per thread; chunks of several steps; ragged last chunks.
TEST(ResidualNormOnce, BackwardLarge) {
  test_backward({1, 5, 2056}, {.dropout = 0.1});
  test_backward({1, 3, 4104}, {.dropout = 0.5, .gap = 8});
  test_backward({1, 4, 8192}, {.accumulate = false});
  test_backward({5, 523, 16}, {.dropout = 0.1});
  test_backward({1, 1031, 768}, {});
}

// The sums depend on the rows alone: device properties change no bit.
TEST(ResidualNormOnce, BitsDoNotDependOnTheDevice) {
  const auto before = emulator::options();
  const auto expected = test_backward({1, 1100, 24}, {});
  emulator::options().multiprocessors = 132;
  emulator::options().threads = 1;
  const auto actual = test_backward({1, 1100, 24}, {});
  emulator::options() = before;
  expect_same(actual, expected, "gradient");
}

TEST(ResidualNormOnce, ImpossibleShapesAreRefused) {
  kernels::ResidualNorm p;
  const RowOperand<bf16> x(2, 12);
  p.rows = 2;
  p.channels = 12;
  p.residual = x.input();
  EXPECT_DEATH(kernels::residual_norm_forward(p, {}, nullptr, nullptr), "12 channels");
  p.channels = kernels::max_norm_channels + 8;
  EXPECT_DEATH(kernels::residual_norm_forward(p, {}, nullptr, nullptr), "room for 8192");
}

}  // namespace
}  // namespace hearth::testing
