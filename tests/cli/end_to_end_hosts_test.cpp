// The executable on two hosts (network namespaces), without a launcher: by hand, under SLURM's variables, and
// when the cable between them breaks.  Skipped where namespaces are not allowed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "support/curves.h"
#include "support/launch_run.h"
#include "support/two_hosts.h"

namespace hearth {
namespace {

using testing::by_hand;
using testing::expect_same_curve;
using testing::last_line;
using testing::layout_command;
using testing::layout_run;
using testing::metrics;
using testing::Outcome;
using testing::Process;
using testing::RankLayout;
using testing::TwoHosts;
using testing::Words;

// Two ranks on each host: tensor-parallel ones are neighbours on one host, data-parallel ones are not.
constexpr int world = 4, ranks_per_host = 2;

int host_of(int rank) {
  return 1 + rank / ranks_per_host;
}

Words train_on_hosts(const fs::path& run, const Words& more = {}) {
  RankLayout layout = testing::one();
  layout.options = testing::tensor2_data2().options;
  return layout_command(layout, run, more);
}

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto obstacle = TwoHosts::obstacle()) GTEST_SKIP() << *obstacle;
    hosts_ = std::make_unique<TwoHosts>();
    ASSERT_EQ(hosts_->problem(), "");
  }

  Words hand(int rank, const Words& train) const {
    Words words = by_hand(rank, world, 29500, train, "node1");
    std::replace(words.begin(), words.end(), text("LOCAL_RANK=", rank),
                 text("LOCAL_RANK=", rank % ranks_per_host));
    return hosts_->on(host_of(rank), words);
  }

  // What srun would set; where rank 0 is, and on which port, follows from it.
  Words slurm(int rank, const Words& train) const {
    Words words{"env",
                "SLURM_PROCID=" + std::to_string(rank),
                "SLURM_STEP_NUM_TASKS=" + std::to_string(world),
                "SLURM_LOCALID=" + std::to_string(rank % ranks_per_host),
                "SLURM_STEP_NODELIST=node[1-2]",
                "SLURM_JOB_ID=4711",
                "SLURM_STEP_ID=0"};
    words.insert(words.end(), train.begin(), train.end());
    return hosts_->on(host_of(rank), words);
  }

  // All ranks train to the end and log what one process logs.
  template <class Start>
  void expect_training(const Start& start) {
    ASSERT_EQ(layout_run(testing::one(), dir_ / "one").code, 0);
    std::vector<Words> commands;
    for (int rank = 0; rank < world; ++rank)
      commands.push_back(start(rank, train_on_hosts(dir_ / "spread")));
    for (const Outcome& outcome : testing::run_together(commands))
      ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_EQ(metrics(dir_ / "spread", "start").at(0).at("world"), world);
    expect_same_curve(dir_ / "spread", dir_ / "one", 1e-5, "two hosts");
  }

  TempDir dir_;
  std::unique_ptr<TwoHosts> hosts_;
};

TEST_F(Hosts, StartedByHandTrainLikeOneProcess) {
  expect_training([this](int rank, const Words& train) { return hand(rank, train); });
}

TEST_F(Hosts, StartedBySlurmTrainLikeOneProcess) {
  expect_training([this](int rank, const Words& train) { return slurm(rank, train); });
}

// No connection closes; both sides find out by the silence.
TEST_F(Hosts, ALostCableEndsBothSides) {
  constexpr double timeout = 2;
  const Words train = train_on_hosts(dir_ / "run", {"--train.steps=100000", "--parallel.timeout=2",
                                                    "--log.every=1", "--checkpoint.every=0"});
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < world; ++rank)
    ranks.push_back(std::make_unique<Process>(hand(rank, train)));
  ASSERT_TRUE(ranks[0]->wait_for("step 20/", 20)) << ranks[0]->output();
  hosts_->cut_cable();
  ASSERT_EQ(hosts_->problem(), "");
  const auto cut = std::chrono::steady_clock::now();
  for (int rank = 0; rank < world; ++rank) {
    const Outcome outcome = ranks[static_cast<size_t>(rank)]->finish(timeout + 15);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - cut;
    EXPECT_LT(passed.count(), timeout + 5) << "rank " << rank << ": " << outcome.output;
    EXPECT_EQ(outcome.code, 71) << "rank " << rank << ": " << outcome.output;
    const std::string line = last_line(outcome.output);
    const std::string other_host = host_of(rank) == 1 ? "(node2, pid " : "(node1, pid ";
    EXPECT_NE(line.find("rank "), std::string::npos) << line;
    EXPECT_NE(line.find(other_host), std::string::npos) << "rank " << rank << ": " << outcome.output;
  }
}

// The side with rank 0 says who is missing, the other one whom it cannot reach.
TEST_F(Hosts, AnUnreachableMasterIsSaidOnBothSides) {
  hosts_->cut_cable();
  ASSERT_EQ(hosts_->problem(), "");
  const auto start = std::chrono::steady_clock::now();
  const Words train = train_on_hosts(dir_ / "run", {"--parallel.init_timeout=2"});
  std::vector<Words> commands;
  for (int rank = 0; rank < world; ++rank)
    commands.push_back(hand(rank, train));
  const std::vector<Outcome> outcomes = testing::run_together(commands);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(passed.count(), 2 + 5);
  for (int rank = 0; rank < world; ++rank) {
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    EXPECT_EQ(outcome.code, 71) << "rank " << rank << ": " << outcome.output;
    const std::string line = last_line(outcome.output);
    const std::string expected = host_of(rank) == 1
                                     ? "ranks 2, 3"
                                     : text("rank ", rank, " on node2 cannot reach rank 0 at node1:29500");
    EXPECT_NE(line.find(expected), std::string::npos) << "rank " << rank << ": " << outcome.output;
  }
  EXPECT_FALSE(fs::exists(dir_ / "run"));
}

}  // namespace
}  // namespace hearth
