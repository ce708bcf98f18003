// Picking a token: temperature, top-k, top-p, ties.
#include <gtest/gtest.h>

#include <cmath>

#include "train/generate.h"

namespace hearth {
namespace {

const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.3f), std::log(0.2f)};

int64_t pick(SamplingConfig s, double uniform) {
  return pick_token(logits, s, uniform);
}

SamplingConfig sampling(double temperature, int64_t top_k, double top_p) {
  SamplingConfig s;
  s.temperature = temperature;
  s.top_k = top_k;
  s.top_p = top_p;
  return s;
}

TEST(PickToken, ZeroTemperatureTakesTheMostLikely) {
  for (double u : {0.001, 0.5, 0.999})
    EXPECT_EQ(pick(sampling(0, 0, 1), u), 1);
}

// In order of falling probability: 1 (0.4), 2 (0.3), 3 (0.2), 0 (0.1).
TEST(PickToken, FollowsTheDistribution) {
  const SamplingConfig s = sampling(1, 0, 1);
  EXPECT_EQ(pick(s, 0.39), 1);
  EXPECT_EQ(pick(s, 0.41), 2);
  EXPECT_EQ(pick(s, 0.69), 2);
  EXPECT_EQ(pick(s, 0.71), 3);
  EXPECT_EQ(pick(s, 0.91), 0);
  EXPECT_EQ(pick(s, 0.999999), 0);
}

TEST(PickToken, TopK) {
  const SamplingConfig s = sampling(1, 2, 1);
  EXPECT_EQ(pick(s, 0.56), 1);
  EXPECT_EQ(pick(s, 0.58), 2);
  EXPECT_EQ(pick(s, 0.9999), 2);
  EXPECT_EQ(pick(sampling(1, 100, 1), 0.9999), 0);
}

TEST(PickToken, TopP) {
  EXPECT_EQ(pick(sampling(1, 0, 0.5), 0.9999), 2);   // 0.4 + 0.3 >= 0.5
  EXPECT_EQ(pick(sampling(1, 0, 0.01), 0.9999), 1);  // always at least one
  EXPECT_EQ(pick(sampling(1, 3, 0.99), 0.9999), 3);  // top-k first
}

TEST(PickToken, LowTemperatureSharpens) {
  EXPECT_EQ(pick(sampling(0.05, 0, 1), 0.9), 1);
  EXPECT_EQ(pick(sampling(100, 0, 1), 0.76), 0);
}

TEST(PickToken, TiesGoToTheSmallerId) {
  const std::vector<float> flat(5, 1.0f);
  EXPECT_EQ(pick_token(flat, sampling(0, 0, 1), 0.5), 0);
  EXPECT_EQ(pick_token(flat, sampling(1, 1, 1), 0.9), 0);
}

}  // namespace
}  // namespace hearth
