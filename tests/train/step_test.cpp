// The training step: skipping, finite weights, wishes, evaluation.
#include "train/step.h"

#include <gtest/gtest.h>

#include "support/model_harness.h"

namespace hearth {
namespace {

RunConfig small_config() {
  RunConfig config;
  config.model = testing::small_model();
  config.train.batch = 2;
  return config;
}

HostBatch batch_of(const ModelConfig& model) {
  HostBatch batch;
  batch.rows = 2;
  for (int64_t i = 0; i < 2 * model.context; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(i % model.vocab));
    batch.targets.push_back(static_cast<int32_t>((3 * i + 1) % model.vocab));
  }
  return batch;
}

struct Fixture {
  Fixture() { runner.initialize(); }

  void poison(const std::string& name, double value) {
    const Tensor first = runner.parameters()
                             .at(name)
                             .weight.reshaped({runner.parameters().at(name).weight.elements()})
                             .rows(0, 1);
    const float narrow = static_cast<float>(value);
    device->copy_in(first, &narrow);
  }
  std::map<std::string, testing::Values> weights() {
    std::map<std::string, testing::Values> all;
    for (const Parameter& p : runner.parameters().all())
      all[p.spec.name] = testing::to_host(*device, p.weight);
    return all;
  }

  const RunConfig config = small_config();
  std::unique_ptr<Device> device = make_reference_device();
  const ProcessGroups groups;
  StepRunner runner{config, *device, groups};
};

TEST(StepRunner, ANonFiniteStepChangesNothingAndTheNextOneStartsClean) {
  Fixture f;
  const HostBatch batch = batch_of(f.config.model);
  Fixture untouched;
  f.runner.run({0, 0.0, 1}, {batch});
  untouched.runner.run({0, 0.0, 1}, {batch});

  const auto bias = testing::to_host(*f.device, f.runner.parameters().at("h.0.mlp.fc.bias").weight);
  f.poison("h.0.mlp.fc.bias", std::nan(""));
  const StepResult skipped = f.runner.run({2, 1e-2, 2}, {batch});
  EXPECT_FALSE(skipped.finite);
  f.poison("h.0.mlp.fc.bias", bias[0]);
  EXPECT_EQ(f.weights(), untouched.weights());

  // Gradients of the skipped step are gone: a good step gives what it gives elsewhere.
  EXPECT_TRUE(f.runner.run({2, 1e-2, 2}, {batch}).finite);
  EXPECT_TRUE(untouched.runner.run({2, 1e-2, 2}, {batch}).finite);
  EXPECT_EQ(f.weights(), untouched.weights());
}

TEST(StepRunner, KnowsWhetherItsWeightsAreFinite) {
  Fixture f;
  EXPECT_TRUE(f.runner.weights_finite());
  f.poison("ln_f.weight", std::numeric_limits<double>::infinity());
  EXPECT_FALSE(f.runner.weights_finite());
  f.poison("ln_f.weight", std::nan(""));
  EXPECT_FALSE(f.runner.weights_finite());
  f.poison("ln_f.weight", 1.0);
  EXPECT_TRUE(f.runner.weights_finite());
}

TEST(StepRunner, ClipsToTheGlobalNorm) {
  Fixture f;
  const HostBatch batch = batch_of(f.config.model);
  const StepResult first = f.runner.run({0, 0.0, 1}, {batch});
  EXPECT_GT(first.grad_norm, 1.0);  // so that the clip is active
  // With a rate of zero only the moments move: moment1 = 0.1 * clipped gradient.
  double squares = 0;
  for (const OptimizerPiece& piece : f.runner.optimizer().pieces())
    for (double x : testing::to_host(*f.device, piece.moment1))
      squares += x * x;
  EXPECT_NEAR(std::sqrt(squares) / 0.1, 1.0, 1e-4);
}

TEST(StepRunner, PassesWishesOnAndTheStrongestWins) {
  Fixture f;
  const HostBatch batch = batch_of(f.config.model);
  for (StopWish wish : {StopWish::none, StopWish::early, StopWish::interrupt, StopWish::terminate}) {
    StepInput input;
    input.wish = wish;
    EXPECT_EQ(f.runner.run(input, {batch}).stop, wish);
  }
}

}  // namespace
}  // namespace hearth
