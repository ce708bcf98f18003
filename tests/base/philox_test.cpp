// Philox against the known answers published with Random123, and the distributions built on it.
#include "base/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace hearth {
namespace {

TEST(Philox, MatchesPublishedVectors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, BlockIndexAndInstanceFillTheWholeCounter) {
  const PhiloxKey key = {7, 8};
  EXPECT_EQ(random_block(key, 0x1111111122222222, 0x3333333344444444),
            philox({0x22222222, 0x11111111, 0x44444444, 0x33333333}, key));
}

TEST(Philox, MixMatchesSplitMix64) {
  // The published generator seeded with 0 adds the increment and finalises: its first outputs.
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafull);
  EXPECT_EQ(mix64(0x9E3779B97F4A7C15ull), 0x6e789e6aa1b965f4ull);
}

TEST(Philox, KeysDifferInSeedDomainAndStream) {
  std::set<uint64_t> keys;
  for (const uint64_t seed : {0, 1, 2})
    for (const RandomDomain domain :
         {RandomDomain::init, RandomDomain::dropout, RandomDomain::permutation, RandomDomain::sampling})
      for (uint64_t stream = 0; stream < 100; ++stream) {
        const PhiloxKey key = random_key(seed, domain, stream);
        keys.insert(uint64_t{key.hi} << 32 | key.lo);
      }
  EXPECT_EQ(keys.size(), 3u * 4u * 100u);
}

TEST(Philox, UniformIsOpenAtBothEnds) {
  EXPECT_GT(uniform_open(0), 0.0);
  EXPECT_LT(uniform_open(0xffffffff), 1.0);
}

TEST(Philox, NormalIsBoxMullerOfTheTwoPairs) {
  // u = 1/2 and a quarter turn: (0, sqrt(2 ln 2)); u = 1/4 and a half turn: (-sqrt(2 ln 4), 0).
  const std::array<double, 4> z = normal4({0x80000000, 0x40000000, 0x40000000, 0x80000000});
  EXPECT_NEAR(z[0], 0, 1e-8);
  EXPECT_NEAR(z[1], 1.17741002251547469, 1e-8);
  EXPECT_NEAR(z[2], -1.66510922231539551, 1e-8);
  EXPECT_NEAR(z[3], 0, 1e-8);
}

TEST(Philox, NormalHasTheMomentsOfAStandardNormal) {
  constexpr int blocks = 100000;
  const PhiloxKey key = random_key(1, RandomDomain::init, 0);
  std::array<double, 5> sums{};
  std::array<double, 4> squares_by_lane{};
  double neighbours = 0;
  for (int block = 0; block < blocks; ++block) {
    const std::array<double, 4> z = normal4(random_block(key, block));
    for (int lane = 0; lane < 4; ++lane) {
      double power = 1;
      for (double& sum : sums) {
        sum += power;
        power *= z[lane];
      }
      squares_by_lane[lane] += z[lane] * z[lane];
    }
    neighbours += z[0] * z[1] + z[1] * z[2] + z[2] * z[3];
  }
  const double n = sums[0];
  // Bounds of five standard errors: the variances of z, z^2, z^3, z^4 are 1, 2, 15, 96.
  const auto five_sigma = [](double variance, double count) { return 5 * std::sqrt(variance / count); };
  EXPECT_NEAR(sums[1] / n, 0, five_sigma(1, n));
  EXPECT_NEAR(sums[2] / n, 1, five_sigma(2, n));
  EXPECT_NEAR(sums[3] / n, 0, five_sigma(15, n));
  EXPECT_NEAR(sums[4] / n, 3, five_sigma(96, n));
  for (const double squares : squares_by_lane)
    EXPECT_NEAR(squares / blocks, 1, five_sigma(2, blocks));
  EXPECT_NEAR(neighbours / (3.0 * blocks), 0, five_sigma(1, 3.0 * blocks));
}

}  // namespace
}  // namespace hearth
