// Runs that are too large for their device: refused beforehand, with what would fit.
#include "train/memory_fit.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "train/step.h"

namespace hearth {
namespace {

RunConfig config_of(int64_t batch, Recompute recompute = Recompute::none) {
  RunConfig config;
  config.model = *model_preset("tiny");
  config.model.vocab = 256;
  config.train.batch = batch;
  config.train.micro_batch = batch;
  config.train.recompute = recompute;
  return config;
}

uint64_t bytes_of(const RunConfig& config, const Grid& grid = Grid()) {
  return StepRunner::plan(config, grid).total();
}

TEST(MemoryFit, MoreRecomputationIsProposedBeforeASmallerMicrobatch) {
  const uint64_t selective = bytes_of(config_of(8, Recompute::selective));
  ASSERT_LT(selective, bytes_of(config_of(8)));
  EXPECT_EQ(smaller_run(config_of(8), Grid(), selective),
            text("train.recompute = \"selective\" would need ", human_bytes(selective)));
  // One byte less, and it is the next policy's turn.
  EXPECT_NE(smaller_run(config_of(8), Grid(), selective - 1).find("train.recompute = \"block\""),
            std::string::npos);
}

TEST(MemoryFit, ThenSmallerMicrobatchesThatDivideTheBatch) {
  RunConfig half = config_of(12, Recompute::block);
  half.train.micro_batch = 6;
  const uint64_t bytes = bytes_of(half);
  EXPECT_EQ(smaller_run(config_of(12, Recompute::block), Grid(), bytes),
            text("train.micro_batch = 6 would need ", human_bytes(bytes)));
  half.train.micro_batch = 4;
  EXPECT_EQ(
      smaller_run(config_of(12, Recompute::block), Grid(), bytes - 1).find("train.micro_batch = 4 would"),
      0u);
  RunConfig one = config_of(12, Recompute::block);
  one.train.micro_batch = 1;
  EXPECT_EQ(smaller_run(config_of(12), Grid(), bytes_of(one))
                .find("train.micro_batch = 1 and "
                      "train.recompute = \"block\" would need"),
            0u);
}

// Two interleaved stages take an even number of microbatches: 20 = 4 x 5 or 10 x 2, but not 5 x 4.
TEST(MemoryFit, InterleavedStagesKeepTheirMultiple) {
  RunConfig config = config_of(20, Recompute::block);
  config.model.layers = 4;
  config.train.micro_batch = 5;
  config.parallel.pipeline = 2;
  config.parallel.schedule = "interleaved";
  config.parallel.virtual_stages = 2;
  const Grid grid(1, 1, 2, 0);
  EXPECT_EQ(smaller_run(config, grid, bytes_of(config, grid) - 1).find("train.micro_batch = 2 would"), 0u);
}

TEST(MemoryFit, ThenMoreRanks) {
  EXPECT_NE(smaller_run(config_of(8), Grid(), 1000).find("parallel.tensor"), std::string::npos);
}

TEST(MemoryFit, ARunThatFitsIsNotRefusedAndOneThatDoesNotSaysWhy) {
  const auto device = make_reference_device();
  require_memory(config_of(8), Grid(), *device);
  RunConfig huge = config_of(1 << 20);
  try {
    require_memory(huge, Grid(), *device);
    FAIL() << "it was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    const std::string what = error.what();
    for (const char* part : {"needs", "activations", "are free on reference", "would need"})
      EXPECT_NE(what.find(part), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace hearth
