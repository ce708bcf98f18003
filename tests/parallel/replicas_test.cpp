// Copies of weights that have drifted apart are found, and who holds the odd one.
#include "parallel/replicas.h"

#include <gtest/gtest.h>

#include <mutex>

#include "parallel/layout_trace.h"

namespace hearth {
namespace {

// A flipped bit of one element of one tensor of one rank.
struct Fault {
  int rank;
  const char* tensor;
};

void flip(const Parameter& p) {
  auto* bytes = static_cast<std::byte*>(p.weight.data);
  bytes[p.weight.bytes() / 2] ^= std::byte{1};
}

// What every rank finds after `step` steps of nothing but initial weights; the same everywhere.
std::optional<OddReplica> found(const Layout& layout, const std::vector<Fault>& faults) {
  const RunConfig config = config_of(layout);
  std::mutex mutex;
  std::vector<std::optional<OddReplica>> answers;
  run_as_threads(layout.tensor, layout.data, layout.pipeline, [&](const ProcessGroups& groups) {
    const auto device = make_reference_device();
    StepRunner runner(config, *device, groups);
    runner.initialize();
    for (const Fault& fault : faults)
      if (fault.rank == groups.grid.rank()) flip(runner.parameters().at(fault.tensor));
    const auto odd = runner.odd_replica();
    const std::lock_guard lock(mutex);
    answers.push_back(odd);
  });
  EXPECT_EQ(answers.size(), static_cast<size_t>(layout.ranks()));
  for (const auto& answer : answers)
    EXPECT_EQ(answer, answers.front());
  return answers.front();
}

std::string told(const Layout& layout, const std::vector<Fault>& faults) {
  const auto odd = found(layout, faults);
  return odd ? text(odd->tensor, ": ", odd->certain ? "" : "perhaps ", odd->rank, ", not ", odd->other)
             : "none";
}

TEST(Replicas, EqualCopiesAreEqual) {
  for (const Layout& layout : {Layout{}, Layout{.data = 3}, Layout{.data = 2, .zero = 1}, Layout{.tensor = 4},
                               Layout{.pipeline = 3}, Layout{.tensor = 2, .data = 2, .pipeline = 2},
                               Layout{.pipeline = 2, .schedule = "interleaved", .chunks = 2}})
    EXPECT_EQ(told(layout, {}), "none") << testing::name_of(layout);
}

// rank = t + T (d + D p)
TEST(Replicas, AFlippedBitIsFoundAndItsRankNamed) {
  EXPECT_EQ(told({.data = 3}, {{2, "h.3.mlp.fc.weight"}}), "h.3.mlp.fc.weight: 2, not 0");
  EXPECT_EQ(told({.data = 3}, {{0, "wte.weight"}}), "wte.weight: 0, not 1");
  EXPECT_EQ(told({.data = 3, .zero = 1}, {{1, "h.0.attn.q.bias"}}), "h.0.attn.q.bias: 1, not 0");
  // Four copies over both axes: the odd one is certain, although there are only two along each.
  EXPECT_EQ(told({.tensor = 2, .data = 2}, {{3, "ln_f.weight"}}), "ln_f.weight: 3, not 0");
  EXPECT_EQ(told({.tensor = 4}, {{1, "h.4.attn.proj.bias"}}), "h.4.attn.proj.bias: 1, not 0");
  EXPECT_EQ(told({.data = 3, .pipeline = 2}, {{4, "h.4.ln_1.bias"}}), "h.4.ln_1.bias: 4, not 3");
  // Two copies: either may be the odd one.
  EXPECT_EQ(told({.data = 2}, {{1, "wpe.weight"}}), "wpe.weight: perhaps 0, not 1");
  EXPECT_EQ(told({.tensor = 2, .data = 2}, {{3, "h.0.attn.v.weight"}}),
            "h.0.attn.v.weight: perhaps 1, not 3");
  EXPECT_EQ(told({.pipeline = 3}, {{2, "wte.weight"}}), "wte.weight: perhaps 0, not 2");
}

TEST(Replicas, WhatOnlyOneRankHasIsNotCompared) {
  EXPECT_EQ(told({}, {{0, "wte.weight"}}), "none");
  EXPECT_EQ(told({.tensor = 2}, {{1, "h.0.mlp.fc.weight"}}), "none");
  EXPECT_EQ(told({.pipeline = 2, .tied = false}, {{1, "lm_head.weight"}}), "none");
}

TEST(Replicas, TheFirstOfSeveralIsNamed) {
  EXPECT_EQ(told({.data = 3, .pipeline = 2}, {{5, "h.4.ln_1.bias"}, {1, "h.1.ln_1.bias"}}),
            "h.1.ln_1.bias: 1, not 0");
}

TEST(Replicas, TheSentence) {
  const std::string certain = sentence_of({5, 0, true, "wte.weight"}, 300, 200);
  EXPECT_NE(certain.find("after step 300 rank 5 holds another wte.weight"), std::string::npos) << certain;
  EXPECT_NE(certain.find("equal after step 200"), std::string::npos) << certain;
  const std::string either = sentence_of({0, 1, false, "wte.weight"}, 300, 200);
  EXPECT_NE(either.find("ranks 0 and 1 hold different copies of wte.weight"), std::string::npos) << either;
}

// A weight that is flipped between steps stays odd through the updates that follow.
TEST(Replicas, AFlippedBitIsStillFoundStepsLater) {
  const Layout layout{.data = 3, .zero = 0};
  const RunConfig config = config_of(layout);
  HostBatch batch;
  batch.rows = 1;
  batch.tokens.assign(16, 5);
  batch.targets.assign(16, 6);
  run_as_threads(1, 3, 1, [&](const ProcessGroups& groups) {
    const auto device = make_reference_device();
    StepRunner runner(config, *device, groups);
    runner.initialize();
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(runner.odd_replica().has_value(), step > 2) << step;
      if (step == 2 && groups.grid.rank() == 1) flip(runner.parameters().at("h.2.mlp.fc.weight"));
      runner.run({step * 12, 1e-2, step + 1}, std::vector<HostBatch>(4, batch));
    }
    const auto odd = runner.odd_replica();
    ASSERT_TRUE(odd.has_value());
    EXPECT_EQ(*odd, (OddReplica{1, 0, true, "h.2.mlp.fc.weight"}));
  });
}

// The hash sees every byte and every place, on both sides of its steps.
TEST(Replicas, TheHashSeesEveryByte) {
  const auto device = make_reference_device();
  std::vector<uint8_t> bytes(101, 7);
  const auto hash = [&] { return hash_of(*device, Tensor(bytes.data(), DType::u8, {101})); };
  std::map<uint64_t, int> seen{{hash(), 1}};
  for (uint8_t& byte : bytes) {
    byte ^= 0x80;
    EXPECT_EQ(++seen[hash()], 1);
    byte ^= 0x80;
  }
  std::swap(bytes[0] = 1, bytes[8]);
  const uint64_t swapped = hash();
  std::swap(bytes[0], bytes[8]);
  EXPECT_NE(hash(), swapped);
}

}  // namespace
}  // namespace hearth
