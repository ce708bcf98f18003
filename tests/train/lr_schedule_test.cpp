// The learning-rate schedule, edges included.
#include "train/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hearth {
namespace {

OptimizerConfig config(LrSchedule schedule) {
  OptimizerConfig c;
  c.lr = 1.0;
  c.min_lr = 0.1;
  c.warmup = 10;
  c.schedule = schedule;
  return c;
}

TEST(LearningRate, WarmsUpLinearly) {
  const OptimizerConfig c = config(LrSchedule::cosine);
  EXPECT_DOUBLE_EQ(learning_rate(c, 110, 0), 1.0 / 11);
  EXPECT_DOUBLE_EQ(learning_rate(c, 110, 9), 10.0 / 11);
  EXPECT_DOUBLE_EQ(learning_rate(c, 110, 10), 1.0);
}

TEST(LearningRate, Cosine) {
  const OptimizerConfig c = config(LrSchedule::cosine);
  EXPECT_NEAR(learning_rate(c, 110, 60), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(c, 110, 35), 0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(learning_rate(c, 110, 110), 0.1, 1e-12);
  EXPECT_NEAR(learning_rate(c, 110, 500), 0.1, 1e-12);
}

TEST(LearningRate, LinearConstantAndWsd) {
  EXPECT_NEAR(learning_rate(config(LrSchedule::linear), 110, 60), 0.55, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate(config(LrSchedule::constant), 110, 109), 1.0);
  OptimizerConfig wsd = config(LrSchedule::wsd);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 100, 80), 1.0);
  EXPECT_NEAR(learning_rate(wsd, 100, 90), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(wsd, 100, 100), 0.1, 1e-12);
  wsd.decay_steps = 50;
  EXPECT_NEAR(learning_rate(wsd, 100, 75), 0.55, 1e-12);
}

TEST(LearningRate, DecayStepsEndTheDecayEarly) {
  OptimizerConfig c = config(LrSchedule::linear);
  c.decay_steps = 20;
  EXPECT_NEAR(learning_rate(c, 110, 15), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(c, 110, 20), 0.1, 1e-12);
}

// Warm-up as long as the run or longer, no steps, one step: always a number in (0, lr].
TEST(LearningRate, EveryEdgeIsDefined) {
  for (LrSchedule schedule : {LrSchedule::constant, LrSchedule::linear, LrSchedule::cosine, LrSchedule::wsd})
    for (int64_t warmup : {0, 1, 10, 1000})
      for (int64_t steps : {0, 1, 10})
        for (int64_t decay : {0, 1, 10, 5000})
          for (double done : {0.0, 0.5, 1.0, 9.0, 10.0, 1e9}) {
            OptimizerConfig c = config(schedule);
            c.warmup = warmup;
            c.decay_steps = decay;
            const double lr = learning_rate(c, steps, done);
            EXPECT_TRUE(lr > 0 && lr <= 1.0) << "warmup " << warmup << " steps " << steps << " done " << done;
          }
}

}  // namespace
}  // namespace hearth
