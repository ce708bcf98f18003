// The validation loss is the same in every layout, although batches go through the pipeline several at a time
// and the last ranks may have none.
#include <gtest/gtest.h>

#include <mutex>

#include "base/philox.h"
#include "parallel/layout_trace.h"

namespace hearth {
namespace {

// 23 samples of 16 tokens.
Dataset validation() {
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < 23 * 16 + 1; ++i)
    ids.push_back(static_cast<int32_t>(mix64(i) % 97));
  std::vector<std::unique_ptr<TokenShard>> shards;
  shards.push_back(memory_shard(ids, "validation"));
  return Dataset(std::move(shards), 16);
}

// Of the initial weights; the same on all ranks.
double loss_of(const Layout& layout, int64_t tokens) {
  const RunConfig config = config_of(layout);
  std::mutex mutex;
  std::vector<double> losses;
  run_as_threads(layout.tensor, layout.data, layout.pipeline, [&](const ProcessGroups& groups) {
    const auto device = make_reference_device();
    StepRunner runner(config, *device, groups);
    runner.initialize();
    const Dataset dataset = validation();
    const EvaluationResult result = runner.evaluate(dataset, tokens, [] { return StopWish::none; });
    const std::lock_guard lock(mutex);
    losses.push_back(result.loss.value());
  });
  for (double loss : losses)
    EXPECT_EQ(loss, losses.front());
  return losses.front();
}

TEST(Evaluate, EveryLayoutFindsTheSameLoss) {
  for (const int64_t tokens : {int64_t{0}, int64_t{7 * 16}}) {
    const double alone = loss_of({}, tokens);
    EXPECT_NEAR(alone, std::log(97.0), 0.1);
    for (const Layout& layout :
         {Layout{.rows = 4}, Layout{.data = 3, .rows = 2}, Layout{.pipeline = 2}, Layout{.pipeline = 5},
          Layout{.pipeline = 2, .schedule = "interleaved", .chunks = 2},
          Layout{.data = 3, .pipeline = 2, .rows = 2}, Layout{.tensor = 2, .sequence = true, .rows = 4},
          Layout{.tensor = 2, .data = 2, .pipeline = 2, .sequence = true, .rows = 3}})
      EXPECT_NEAR(loss_of(layout, tokens), alone, 1e-12) << testing::name_of(layout) << " " << tokens;
  }
}

// A wish ends it on all ranks.
TEST(Evaluate, AWishOfOneRankStopsAll) {
  const RunConfig config = config_of({.data = 2, .pipeline = 2});
  run_as_threads(1, 2, 2, [&](const ProcessGroups& groups) {
    const auto device = make_reference_device();
    StepRunner runner(config, *device, groups);
    runner.initialize();
    const bool wishes = groups.grid.rank() == 3;
    const EvaluationResult result =
        runner.evaluate(validation(), 0, [&] { return wishes ? StopWish::terminate : StopWish::none; });
    EXPECT_FALSE(result.loss.has_value());
    EXPECT_EQ(result.stop, StopWish::terminate);
  });
}

}  // namespace
}  // namespace hearth
