// A fault in one rank of a run of the executable (tests/faulty): all ranks come to the same decision.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/socket.h"
#include "support/launch_run.h"

namespace hearth {
namespace {

using testing::metrics;
using testing::Outcome;
using testing::RankLayout;
using testing::Words;

std::string faulty_binary() {
  const char* path = std::getenv("HEARTH_FAULTY");
  return path ? path : "build/hearth-faulty";
}

// Every rank started by hand, so that each one's own end is seen.
std::vector<Outcome> run_faulty(const RankLayout& layout, const std::string& fault, const fs::path& run,
                                const Words& more) {
  RankLayout alone = layout;
  alone.ranks = 1;  // without the launcher
  Words command = testing::layout_command(alone, run, {"--device.kind=cuda", "--device.threads=1"});
  command.front() = faulty_binary();
  command.insert(command.end(), more.begin(), more.end());
  const int port = port_of(listen_on(0));
  std::vector<Words> ranks;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    ranks.push_back(testing::by_hand(rank, layout.ranks, port, command));
    ranks.back().insert(ranks.back().begin() + 1, "HEARTH_FAULT=" + fault);
  }
  return testing::run_together(ranks, 60);
}

// The steps that were not finite.
std::vector<int> skipped(const fs::path& run) {
  std::vector<int> steps;
  for (const auto& line : metrics(run, "step"))
    if (line.contains("finite") && line.at("finite") == false) steps.push_back(line.at("step"));
  return steps;
}

TEST(FaultyRank, WithoutAFaultNothingHappens) {
  TempDir dir;
  for (const Outcome& rank : run_faulty(testing::data3(), "none 1 1 9", dir / "run", {}))
    EXPECT_EQ(rank.code, 0) << rank.output;
  EXPECT_EQ(metrics(dir / "run", "step").size(), 7u);
  EXPECT_TRUE(skipped(dir / "run").empty());
}

// A flipped bit of a weight ends the run with exit code 71, and every rank says whose it is.
TEST(FaultyRank, AnOddWeightEndsTheRunOnAllRanks) {
  struct Case {
    RankLayout layout;
    const char* fault;
    std::string said;
  };
  const Case cases[] = {
      {testing::data3(), "weight 1 3 3",
       "after step 4 rank 1 holds another wte.weight than rank 0 and the other ranks that have a copy"},
      {testing::data2(), "weight 1 4 4", "after step 4 ranks 0 and 1 hold different copies of wte.weight"},
      {testing::tensor2_data2(), "weight 3 3 3",
       "after step 4 ranks 1 and 3 hold different copies of wte.weight"}};
  for (const Case& c : cases) {
    TempDir dir;
    const auto ranks = run_faulty(c.layout, c.fault, dir / "run", {"--parallel.check_every=2"});
    ASSERT_EQ(ranks.size(), static_cast<size_t>(c.layout.ranks));
    for (const Outcome& rank : ranks) {
      EXPECT_EQ(rank.code, 71) << rank.output;
      EXPECT_NE(rank.output.find(c.said), std::string::npos) << c.layout.name << "\n" << rank.output;
      EXPECT_NE(rank.output.find("they were equal after step 2"), std::string::npos) << rank.output;
    }
    EXPECT_FALSE(fs::exists(testing::checkpoint_of(dir / "run", 4))) << "saved after it was found";
  }
}

class NanOnOneRank : public ::testing::TestWithParam<RankLayout> {};

// One step is skipped by all, and the run goes on.
TEST_P(NanOnOneRank, SkipsTheStepOnAll) {
  TempDir dir;
  const std::string last = std::to_string(GetParam().ranks - 1);
  // Copies that differed after the skipped step would be found.
  for (const Outcome& rank :
       run_faulty(GetParam(), "nan " + last + " 3 3", dir / "run", {"--parallel.check_every=1"}))
    EXPECT_EQ(rank.code, 0) << rank.output;
  EXPECT_EQ(metrics(dir / "run", "step").size(), 7u);
  EXPECT_EQ(skipped(dir / "run"), std::vector<int>{3});
  const auto steps = metrics(dir / "run", "step");
  EXPECT_TRUE(std::isfinite(steps.back().at("loss").get<double>()));
}

// When it does not end, the run does: with exit code 70, everywhere, behind the third step that was skipped.
TEST_P(NanOnOneRank, StopsAllAfterMaxSkipped) {
  TempDir dir;
  const std::string last = std::to_string(GetParam().ranks - 1);
  for (const Outcome& rank :
       run_faulty(GetParam(), "nan " + last + " 3 99", dir / "run", {"--train.max_skipped=3"}))
    EXPECT_EQ(rank.code, 70) << rank.output;
  EXPECT_EQ(skipped(dir / "run"), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(metrics(dir / "run", "step").size(), 5u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, NanOnOneRank,
                         ::testing::Values(testing::data2_zero(), testing::tensor2(), testing::pipeline2(),
                                           testing::tensor2_pipeline2_sequence()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hearth
