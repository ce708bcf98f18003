// The conformance suite over every communicator, and what each does when a rank fails.
#include "comm/communicator.h"

#include <gtest/gtest.h>

#include "comm/combine.h"
#include "comm/grid.h"
#include "conformance.h"
#include "support/ranks.h"

namespace hearth {
namespace {

using std::chrono::milliseconds;

void expect_success(const std::vector<RankResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_EQ(results[rank].code, 0) << "rank " << rank << ": " << results[rank].output;
}

TEST(Communicator, SelfConforms) {
  SelfCommunicator self;
  EXPECT_NO_THROW(check_conformance(self, true));
}

class GlooConforms : public testing::TestWithParam<int> {};

TEST_P(GlooConforms, ToNaiveLoops) {
  expect_success(run_group(
      GetParam(), [](ControlPlane&, Communicator& group) { check_conformance(group, true); }, 60));
}

INSTANTIATE_TEST_SUITE_P(Sizes, GlooConforms, testing::Values(2, 3, 5, 8));

// Every group of a 2 x 3 x 2 grid at once; the order of the ranks in a group is the order of its sums.
TEST(Gloo, GroupsOfAGridWorkSideBySide) {
  expect_success(run_ranks(
      12,
      [](ControlPlane& control) {
        const Grid grid(2, 3, 2, control.rank());
        GlooFabric fabric(control);
        std::vector<std::unique_ptr<Communicator>> groups;
        for (Axis axis : all_axes)
          groups.push_back(fabric.connect(name_of(axis), grid.group(axis)));
        std::vector<Request> requests;
        std::vector<std::vector<float>> data;
        for (size_t axis = 0; axis < groups.size(); ++axis)
          data.emplace_back(100, static_cast<float>(control.rank()));
        for (size_t axis = 0; axis < groups.size(); ++axis)
          requests.push_back(
              groups[axis]->all_reduce(Tensor(data[axis].data(), DType::f32, {100}), Reduce::sum));
        for (size_t axis = 0; axis < groups.size(); ++axis) {
          requests[axis].wait();
          float want = 0;
          for (int rank : grid.group(all_axes[axis]))
            want += static_cast<float>(rank);
          require(data[axis][99] == want, "the sum over ", name_of(all_axes[axis]), " is ", data[axis][99],
                  ", not ", want);
        }
        control.barrier("end");
      },
      60));
}

// A group in another order than the ranks': parts follow the group.
TEST(Gloo, GroupOrderIsTheOrderGiven) {
  expect_success(run_ranks(
      3,
      [](ControlPlane& control) {
        GlooFabric fabric(control);
        const auto group = fabric.connect("odd", {2, 0, 1});
        require(group->rank() == (control.rank() + 1) % 3, "rank in the group");
        std::vector<int32_t> mine{control.rank()}, all(3);
        group->all_gather(Tensor(mine.data(), DType::i32, {1}), Tensor(all.data(), DType::i32, {3})).wait();
        require(all == std::vector<int32_t>({2, 0, 1}), "gathered in group order");
        control.barrier("end");
      },
      30));
}

TEST(Combine, Bf16RoundsOnce) {
  // 256 + 1 + 1: in bf16 each step would round back to 256; in fp32 the sum is 258, a bf16 number.
  bf16 a(256.0f), b(1.0f), c(1.0f), out;
  const void* parts[] = {&a, &b, &c};
  combine(DType::bf16, Reduce::sum, parts, &out, 1);
  EXPECT_EQ(static_cast<float>(out), 258.0f);
}

// ---- failures: all other ranks end with code 71, in time, and name the culprit

constexpr int ranks = 4;
constexpr int culprit = 2;

void shorten(ControlOptions& options) {
  options.timeout = milliseconds(1500);
}

// One rank misbehaves between two rounds of all-reduce.
std::vector<RankResult> with_a_culprit(const std::function<void(ControlPlane&, Communicator&)>& misbehave,
                                       bool stuck = false) {
  return run_group(
      ranks,
      [&](ControlPlane& control, Communicator& group) {
        std::vector<float> x(200'000, 1.0f);
        const Tensor tensor(x.data(), DType::f32, {200'000});
        for (int step = 0; step < 3; ++step)
          group.all_reduce(tensor, Reduce::sum).wait();
        control.set_status("step 3");
        if (group.rank() == culprit) misbehave(control, group);
        group.all_reduce(tensor, Reduce::sum).wait();
      },
      20, stuck ? std::vector<int>{culprit} : std::vector<int>{}, shorten);
}

void expect_blamed(const std::vector<RankResult>& results, const std::string& words, double within,
                   ExitCode code = ExitCode::peer) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == culprit) continue;
    const RankResult& r = results[static_cast<size_t>(rank)];
    EXPECT_TRUE(r.ended) << "rank " << rank << " hangs";
    EXPECT_EQ(r.code, static_cast<int>(code)) << "rank " << rank << ": " << r.output;
    EXPECT_NE(r.output.find("rank 2 ("), std::string::npos) << r.output;
    EXPECT_NE(r.output.find(words), std::string::npos) << r.output;
    EXPECT_LE(r.seconds, within) << r.output;
  }
}

TEST(GlooFailure, DeadPeer) {
  const auto results = with_a_culprit([](ControlPlane&, Communicator&) { ::kill(::getpid(), SIGKILL); });
  EXPECT_EQ(results[culprit].code, 128 + SIGKILL);
  expect_blamed(results, "died", 2);
  // The message says what this rank was doing, too: it may not have left the operation before yet.
  EXPECT_NE(results[1].output.find("all_reduce(sum) "), std::string::npos) << results[1].output;
  EXPECT_NE(results[1].output.find(" of 200000 F32 on the data axis"), std::string::npos)
      << results[1].output;
}

TEST(GlooFailure, StoppedPeer) {
  const auto results =
      with_a_culprit([](ControlPlane&, Communicator&) { ::kill(::getpid(), SIGSTOP); }, true);
  expect_blamed(results, "silent", 1.5 + 5);
}

TEST(GlooFailure, PeerThatHangsButLives) {
  const auto results = with_a_culprit(
      [](ControlPlane&, Communicator&) { std::this_thread::sleep_for(std::chrono::seconds(60)); }, true);
  expect_blamed(results, "did not take part in all_reduce(sum) 4", 1.5 + 5);
}

TEST(GlooFailure, LatePeerWithinTheTimeoutIsFine) {
  expect_success(
      with_a_culprit([](ControlPlane&, Communicator&) { std::this_thread::sleep_for(milliseconds(1000)); }));
}

TEST(GlooFailure, PeerWithAnErrorOfItsOwn) {
  const auto results =
      with_a_culprit([](ControlPlane&, Communicator&) { fail_data("rank 2 (here): shard 7 is torn"); });
  EXPECT_EQ(results[culprit].code, 65);
  expect_blamed(results, "shard 7 is torn", 2, ExitCode::data);
}

TEST(GlooFailure, MismatchedCounts) {
  const auto results = with_a_culprit([](ControlPlane&, Communicator& group) {
    std::vector<float> x(199'999, 1.0f);
    group.all_reduce(Tensor(x.data(), DType::f32, {199'999}), Reduce::sum).wait();
  });
  for (const RankResult& r : results) {
    EXPECT_TRUE(r.ended);
    EXPECT_EQ(r.code, 71) << r.output;
    EXPECT_LE(r.seconds, 1.5 + 5);
    EXPECT_NE(r.output.find("did not take part in all_reduce(sum) 4"), std::string::npos) << r.output;
  }
}

TEST(GlooFailure, MismatchedOperations) {
  const auto results = with_a_culprit([](ControlPlane&, Communicator& group) {
    std::vector<float> x(200'000, 1.0f);
    group.all_reduce(Tensor(x.data(), DType::f32, {200'000}), Reduce::max).wait();
  });
  for (const RankResult& r : results)
    EXPECT_EQ(r.code, 71) << r.output;
}

TEST(GlooFailure, TransferWithoutACounterpart) {
  const auto results = run_group(
      2,
      [](ControlPlane&, Communicator& group) {
        float x = 0;
        if (group.rank() == 0) group.recv(Tensor(&x, DType::f32, {1}), 1).wait();
      },
      20, {}, shorten);
  EXPECT_EQ(results[0].code, 71);
  EXPECT_EQ(results[1].code, 71);
  EXPECT_LE(results[0].seconds, 1.5 + 5);
}

TEST(GlooFailure, ConnectingWithoutAPeer) {
  const auto results = run_ranks(
      3,
      [](ControlPlane& control) {
        GlooFabric fabric(control);
        if (control.rank() == 2) ::kill(::getpid(), SIGKILL);
        fabric.connect("data", {0, 1, 2});
      },
      20, {}, shorten);
  for (int rank : {0, 1}) {
    EXPECT_EQ(results[static_cast<size_t>(rank)].code, 71);
    EXPECT_NE(results[static_cast<size_t>(rank)].output.find("rank 2"), std::string::npos);
  }
}

}  // namespace
}  // namespace hearth
