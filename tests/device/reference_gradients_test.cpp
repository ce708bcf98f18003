// The backward operations of the reference against central differences of its forward operations, in f64.
//
// A case is a set of named inputs, a forward pass to an output y, and a backward pass from dy to a gradient
// for each input.  The scalar that is differentiated is L = sum of y * dy for a fixed random dy.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/philox.h"
#include "device/device.h"
#include "device/ops.h"

namespace hearth {
namespace {

// An f64 tensor with memory of its own.
struct Array {
  Shape shape;
  std::vector<double> values;

  explicit Array(Shape dims, double fill = 0) : shape(dims), values(dims.elements(), fill) {}
  operator Tensor() { return Tensor(values.data(), DType::f64, shape); }
  Tensor tensor() { return *this; }
};

Array random(const Shape& shape, uint64_t stream, double scale = 1, double mean = 0) {
  Array a(shape);
  const PhiloxKey key = random_key(1, RandomDomain::init, stream);
  for (size_t i = 0; i < a.values.size(); ++i)
    a.values[i] = mean + scale * normal4(random_block(key, i / 4))[i % 4];
  return a;
}

double dot(const Array& a, const Array& b) {
  double sum = 0;
  for (size_t i = 0; i < a.values.size(); ++i)
    sum += a.values[i] * b.values[i];
  return sum;
}

class ReferenceGradients : public ::testing::Test {
 protected:
  Ops& ops() { return device_->ops(); }

  // Compares `gradient` with the central differences of loss() in every element of `input`.
  void expect_gradient(const std::string& name, Array& input, const std::vector<double>& gradient,
                       const std::function<double()>& loss) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < input.values.size(); ++i) {
      const double step = 1e-4, value = input.values[i];
      const auto at = [&](double offset) {
        input.values[i] = value + offset;
        const double result = loss();
        input.values[i] = value;
        return result;
      };
      // Fourth order, so that neither truncation nor rounding matters at 1e-6.
      const double slope = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
      difference += (gradient[i] - slope) * (gradient[i] - slope);
      size += slope * slope;
    }
    EXPECT_GT(size, 0) << name;
    EXPECT_LE(std::sqrt(difference / size), 1e-6) << name;
  }

  std::unique_ptr<Device> device_ = make_reference_device();
};

TEST_F(ReferenceGradients, Linear) {
  Array x = random({5, 6}, 1), w = random({4, 6}, 2), bias = random({4}, 3), dy = random({5, 4}, 4),
        y({5, 4});
  const auto loss = [&] {
    ops().linear_forward(x, w, bias, y);
    return dot(y, dy);
  };
  Array dx({5, 6}), dw({4, 6}, 10), dbias({4}, 10);  // weight gradients are added to
  ops().linear_backward_input(dy, w, dx);
  ops().linear_backward_weight(dy, x, dw, dbias);
  for (Array* sum : {&dw, &dbias})
    for (double& value : sum->values)
      value -= 10;
  expect_gradient("x", x, dx.values, loss);
  expect_gradient("w", w, dw.values, loss);
  expect_gradient("bias", bias, dbias.values, loss);
}

// y = gelu(x u^T + bias) w^T: the gradient through the activation comes with that of the second layer.
TEST_F(ReferenceGradients, LinearWithGelu) {
  Array x = random({5, 6}, 1), u = random({7, 6}, 2), bias = random({7}, 3), w = random({4, 7}, 4);
  Array dy = random({5, 4}, 5), pre({5, 7}), hidden({5, 7}), y({5, 4});
  const auto loss = [&] {
    ops().linear_forward(x, u, bias, hidden, Activation::gelu, pre);
    ops().linear_forward(hidden, w, {}, y);
    return dot(y, dy);
  };
  loss();
  Array d_pre({5, 7}), du({7, 6}), dbias({7}), dx({5, 6});
  ops().linear_backward_input(dy, w, d_pre, pre);
  ops().linear_backward_weight(d_pre, x, du, dbias);
  ops().linear_backward_input(d_pre, u, dx);
  expect_gradient("u", u, du.values, loss);
  expect_gradient("bias", bias, dbias.values, loss);
  expect_gradient("x", x, dx.values, loss);
}

// Gradients arrive at both outputs: the sum goes on as the residual stream, the norm to a layer.
TEST_F(ReferenceGradients, ResidualNorm) {
  const int64_t N = 6, C = 8;
  const StepParams step{.first_sample = 3};
  ops().set_step_params(&step);
  Array residual = random({N, C}, 1), branch = random({N, C}, 2), branch_bias = random({C}, 3);
  Array weight = random({C}, 4, 0.3, 1), bias = random({C}, 5);
  Array sum({N, C}), normed({N, C}), mean({N}), rstd({N});
  Array d_normed = random({N, C}, 6), d_sum = random({N, C}, 7);
  for (const double probability : {0.0, 0.3}) {
    Dropout dropout;
    dropout.probability = probability;
    dropout.time = 3;
    Ops::ResidualNorm forward;
    forward.residual = residual;
    forward.branch = branch;
    forward.branch_bias = branch_bias;
    forward.dropout = dropout;
    forward.residual_out = sum;
    forward.weight = weight;
    forward.bias = bias;
    forward.normed = normed;
    forward.mean = mean;
    forward.rstd = rstd;
    const auto loss = [&] {
      ops().residual_norm_forward(forward);
      return dot(normed, d_normed) + dot(sum, d_sum);
    };
    loss();
    Array d_residual = d_sum, d_branch({N, C}), d_weight({C}), d_bias({C}), d_branch_bias({C});
    Ops::ResidualNormBackward backward;
    backward.d_normed = d_normed;
    backward.d_residual = d_residual;
    backward.x = sum;
    backward.mean = mean;
    backward.rstd = rstd;
    backward.weight = weight;
    backward.d_weight = d_weight;
    backward.d_bias = d_bias;
    backward.d_branch = d_branch;
    backward.d_branch_bias = d_branch_bias;
    backward.dropout = dropout;
    ops().residual_norm_backward(backward);
    expect_gradient("residual", residual, d_residual.values, loss);
    expect_gradient("branch", branch, d_branch.values, loss);
    expect_gradient("branch_bias", branch_bias, d_branch_bias.values, loss);
    expect_gradient("weight", weight, d_weight.values, loss);
    expect_gradient("bias", bias, d_bias.values, loss);
  }
}

// The last norm of a model: nothing comes from above but through the norm.
TEST_F(ReferenceGradients, NormAlone) {
  const int64_t N = 3, C = 8;
  Array x = random({N, C}, 1), weight = random({C}, 2, 0.3, 1), d_normed = random({N, C}, 3);
  Array normed({N, C}), mean({N}), rstd({N});
  const auto loss = [&] {
    Ops::ResidualNorm p;
    p.residual = x;
    p.weight = weight;
    p.normed = normed;
    p.mean = mean;
    p.rstd = rstd;
    ops().residual_norm_forward(p);
    return dot(normed, d_normed);
  };
  loss();
  Array d_x({N, C}, std::nan("")), d_weight({C});
  Ops::ResidualNormBackward p;
  p.d_normed = d_normed;
  p.d_residual = d_x;
  p.accumulate = false;
  p.x = x;
  p.mean = mean;
  p.rstd = rstd;
  p.weight = weight;
  p.d_weight = d_weight;
  ops().residual_norm_backward(p);
  expect_gradient("x", x, d_x.values, loss);
  expect_gradient("weight", weight, d_weight.values, loss);
}

TEST_F(ReferenceGradients, Attention) {
  const int64_t B = 2, T = 5, D = 4;
  for (const auto& [H, Hkv] : {std::pair<int64_t, int64_t>{2, 2}, {4, 2}, {3, 1}}) {
    const int64_t width = (H + 2 * Hkv) * D;
    Array qkv = random({B * T, width}, 1), dout = random({B * T, H * D}, 2), out({B * T, H * D});
    Array lse({B, H, T}), delta({B, H, T}), dqkv({B * T, width}, std::nan(""));
    const auto q = [&, H = H](Array& a) { return a.tensor().heads(B, 0, H, D); };
    const auto k = [&, H = H, Hkv = Hkv](Array& a) { return a.tensor().heads(B, H * D, Hkv, D); };
    const auto v = [&, H = H, Hkv = Hkv](Array& a) { return a.tensor().heads(B, (H + Hkv) * D, Hkv, D); };
    const auto loss = [&] {
      ops().attention_forward(q(qkv), k(qkv), v(qkv), q(out), lse);
      return dot(out, dout);
    };
    loss();
    ops().attention_backward(q(qkv), k(qkv), v(qkv), q(out), q(dout), lse, delta, q(dqkv), k(dqkv), v(dqkv));
    expect_gradient(text("qkv of ", H, " heads over ", Hkv), qkv, dqkv.values, loss);
  }
}

// A decoded token sees what the last row of the forward pass sees.
TEST_F(ReferenceGradients, DecodeIsTheLastRowOfForward) {
  const int64_t T = 7, H = 4, Hkv = 2, D = 8, width = (H + 2 * Hkv) * D;
  Array qkv = random({T, width}, 1), out({T, H * D}), lse({1, H, T}), last({1, H * D});
  const Tensor q = qkv.tensor().heads(1, 0, H, D), k = qkv.tensor().heads(1, H * D, Hkv, D),
               v = qkv.tensor().heads(1, (H + Hkv) * D, Hkv, D);
  ops().attention_forward(q, k, v, out.tensor().heads(1, 0, H, D), lse);
  ops().attention_decode(q.slice(1, T - 1, 1), k, v, T, last.tensor().heads(1, 0, H, D));
  for (int64_t i = 0; i < H * D; ++i)
    EXPECT_DOUBLE_EQ(last.values[i], out.values[(T - 1) * H * D + i]);
}

TEST_F(ReferenceGradients, Embeddings) {
  const int64_t N = 8, C = 6, V = 5, T = 4;
  const StepParams step{.first_sample = 3};
  ops().set_step_params(&step);
  std::vector<int32_t> ids = {1, 3, 1, 4, 0, 9, 1, 2}, places = {0, 1, 2, 3, 0, 1, 2, 3};  // 9: another shard
  const Tensor tokens(ids.data(), DType::i32, {N}), positions(places.data(), DType::i32, {N});
  Array token_table = random({V, C}, 1), position_table = random({T, C}, 2), dx = random({N, C}, 3),
        x({N, C});
  Dropout dropout;
  dropout.probability = 0.3;
  dropout.time = T;
  const auto loss = [&] {
    ops().embed_tokens(tokens, token_table, 0, x);
    ops().embed_positions(x, positions, position_table, dropout);
    return dot(x, dx);
  };
  Array d = dx, d_tokens({V, C}), d_positions({T, C});
  ops().embed_positions_backward(d, positions, dropout, d_positions);
  ops().embed_tokens_backward(tokens, d, 0, d_tokens);
  expect_gradient("token table", token_table, d_tokens.values, loss);
  expect_gradient("position table", position_table, d_positions.values, loss);
}

// The gradient of the mean over 3 valid of 4 targets; column 5 is padding.
TEST_F(ReferenceGradients, CrossEntropy) {
  const int64_t N = 4, V = 6;
  const StepParams step{.loss_scale = 1.0 / 3};
  ops().set_step_params(&step);
  std::vector<int32_t> ids = {1, -1, 4, 0};
  const Tensor targets(ids.data(), DType::i32, {N});
  const VocabShard shard{0, 5};
  Array logits = random({N, V}, 1, 2), dlogits({N, V}), stats({3, N}), losses({N});
  const auto loss = [&] {
    ops().cross_entropy_statistics(logits, targets, shard, stats);
    ops().cross_entropy_finish(logits, targets, shard, stats, losses, {});
    return (losses.values[0] + losses.values[1] + losses.values[2] + losses.values[3]) / 3;
  };
  loss();
  ops().cross_entropy_finish(logits, targets, shard, stats, losses, dlogits);
  expect_gradient("logits", logits, dlogits.values, loss);
}

// Equal logits over V classes: the loss is log V.
TEST_F(ReferenceGradients, CrossEntropyOfEqualLogits) {
  std::vector<int32_t> ids = {2};
  const Tensor targets(ids.data(), DType::i32, {1});
  Array logits({1, 7}, 3.5), stats({3, 1}), losses({1});
  ops().cross_entropy_statistics(logits, targets, {0, 7}, stats);
  ops().cross_entropy_finish(logits, targets, {0, 7}, stats, losses, {});
  EXPECT_NEAR(losses.values[0], std::log(7), 1e-14);
}

// Two steps of AdamW by hand.
TEST_F(ReferenceGradients, AdamWByHand) {
  StepParams step{.learning_rate = 0.1, .clip_scale = 0.5, .bias_correction1 = 0.1, .bias_correction2 = 0.05};
  ops().set_step_params(&step);
  Array master({1}, 2), moment1({1}), moment2({1}), grad({1}, 4);
  const AdamWConfig config{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  const std::vector<AdamWSegment> segments = {{master, moment1, moment2, grad, {}, true}};
  ops().adamw(segments, config);
  // g = 2, m = 0.2, v = 0.2; corrected 2 and 4; update 2 / 2 + 0.1 * 2.
  EXPECT_NEAR(moment1.values[0], 0.2, 1e-15);
  EXPECT_NEAR(moment2.values[0], 0.2, 1e-15);
  EXPECT_NEAR(master.values[0], 2 - 0.1 * (1 + 0.2), 1e-8);
  EXPECT_EQ(grad.values[0], 0);

  step.bias_correction1 = 1 - 0.9 * 0.9;
  step.bias_correction2 = 1 - 0.95 * 0.95;
  step.clip_scale = 1;
  grad.values[0] = -1;
  ops().adamw(segments, config);
  const double m = 0.9 * 0.2 - 0.1, v = 0.95 * 0.2 + 0.05;
  EXPECT_NEAR(master.values[0], 1.88 - 0.1 * (m / 0.19 / (std::sqrt(v / 0.0975) + 1e-8) + 0.188), 1e-8);
}

}  // namespace
}  // namespace hearth
