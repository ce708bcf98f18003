// Communicators of GPUs, NCCL (its stand-in) and Gloo through host memory: the conformance suite, the order
// of streams, and what each does when a rank fails.
#include <gtest/gtest.h>

#include "comm/conformance.h"
#include "comm/grid.h"
#include "emulator/comm/gpu_ranks.h"

namespace hearth {
namespace {

using std::chrono::milliseconds;

void expect_success(const std::vector<RankResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_EQ(results[rank].code, 0) << "rank " << rank << ": " << results[rank].output;
}

struct Case {
  Transport transport;
  int ranks;
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << (c.transport == Transport::nccl ? "nccl" : "staged") << c.ranks;
  }
};
std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  return testing::PrintToString(info.param);
}

class GpuConforms : public testing::TestWithParam<Case> {};

TEST_P(GpuConforms, ToNaiveLoops) {
  const bool exact = GetParam().transport == Transport::staged;
  expect_success(run_gpu_group(
      GetParam().transport, GetParam().ranks,
      [&](ControlPlane&, Device& device, Communicator& group) {
        DeviceSide side(group, device);
        check_conformance(side, exact, GetParam().ranks == (exact ? 3 : 2) ? Types::all : Types::few);
      },
      60));
}

INSTANTIATE_TEST_SUITE_P(All, GpuConforms,
                         testing::Values(Case{Transport::nccl, 2}, Case{Transport::nccl, 3},
                                         Case{Transport::staged, 3}),
                         name_of_case);

class Gpu : public testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(All, Gpu, testing::Values(Transport::nccl, Transport::staged), [](const auto& info) {
  return info.param == Transport::nccl ? std::string("nccl") : std::string("staged");
});

// Every axis of a grid at once; parts follow the order of the group.
TEST_P(Gpu, GroupsOfAGrid) {
  expect_success(run_ranks(
      4,
      [&](ControlPlane& control) {
        const Grid grid(2, 2, 1, control.rank());
        const auto device = device_of(GetParam(), control.rank(), 4);
        GpuFabric fabric(GetParam(), control, *device);
        const auto tensor = fabric.connect("tensor", grid.group(Axis::tensor));
        const auto data = fabric.connect("data", grid.group(Axis::data));
        const auto odd = fabric.connect("odd", {2, 0, 3, 1});
        std::vector<int32_t> sums(2, control.rank()), order(4);
        OnDevice t(*device, Tensor(&sums[0], DType::i32, {1})), d(*device, Tensor(&sums[1], DType::i32, {1}));
        OnDevice all(*device, Tensor(order.data(), DType::i32, {4}));
        std::vector<int32_t> mine{control.rank()};
        OnDevice own(*device, Tensor(mine.data(), DType::i32, {1}));
        Request a = tensor->all_reduce(t.tensor(), Reduce::sum),
                b = data->all_reduce(d.tensor(), Reduce::sum);
        Request c = odd->all_gather(own.tensor(), all.tensor());
        c.wait();
        b.wait();
        a.wait();
        for (OnDevice* x : {&t, &d, &all})
          x->download();
        const auto sum_of = [](const std::vector<int>& ranks) { return ranks[0] + ranks[1]; };
        require(sums[0] == sum_of(grid.group(Axis::tensor)), "the sum over the tensor axis is ", sums[0]);
        require(sums[1] == sum_of(grid.group(Axis::data)), "the sum over the data axis is ", sums[1]);
        require(order == std::vector<int32_t>({2, 0, 3, 1}), "gathered in group order");
        control.barrier("end");
      },
      30));
}

// The operation starts after the compute stream's work so far, and what follows wait() after the operation:
// nothing of this chain is waited for on the host.  The values change in every round.
TEST_P(Gpu, StreamsOrderTheWork) {
  expect_success(run_gpu_group(
      GetParam(), 2,
      [](ControlPlane&, Device& device, Communicator& group) {
        constexpr int64_t n = 50'000;
        std::vector<float> values(n), results(n);
        Buffer x(device, n * sizeof(float)), y(device, n * sizeof(float));
        const Tensor in(x.data(), DType::f32, {n}), out(y.data(), DType::f32, {n});
        for (int round = 0; round < 5; ++round) {
          device.synchronize();
          std::fill(values.begin(), values.end(), static_cast<float>(100 * round + group.rank() + 1));
          device.copy_in(in, values.data());
          group.all_reduce(in, Reduce::sum).wait();
          device.copy(Stream::compute, out.data, in.data, n * sizeof(float));  // reads the sum,
          device.copy_in(in, values.data());                                   // and then it is written over,
          Request second = group.all_reduce(in, Reduce::sum);                  // and so again
          second.wait();
          device.copy_out(results.data(), out);
          require(results[n - 1] == static_cast<float>(200 * round + 3), "round ", round, " gave ",
                  results[n - 1]);
          device.copy_out(results.data(), in);
          require(results[0] == static_cast<float>(200 * round + 3), "round ", round, " then gave ",
                  results[0]);
        }
      },
      30));
}

// Many operations at once, more than any pool of events or staging memory keeps.
TEST_P(Gpu, ManyAtOnce) {
  expect_success(run_gpu_group(
      GetParam(), 2,
      [](ControlPlane&, Device& device, Communicator& group) {
        constexpr size_t count = 200;
        std::vector<int32_t> values(count);
        Buffer x(device, count * sizeof(int32_t));
        const Tensor all(x.data(), DType::i32, {count});
        for (size_t i = 0; i < count; ++i)
          values[i] = static_cast<int32_t>(i) * (group.rank() + 1);
        device.copy_in(all, values.data());
        std::vector<Request> requests;
        for (size_t i = 0; i < count; ++i)
          requests.push_back(group.all_reduce(all.rows(static_cast<int64_t>(i), 1), Reduce::sum));
        for (size_t i = count; i-- > 0;)
          requests[i].wait();
        device.copy_out(values.data(), all);
        for (size_t i = 0; i < count; ++i)
          require(values[i] == static_cast<int32_t>(3 * i), "sum ", i, " is ", values[i]);
      },
      30));
}

// ---- failures: all other ranks end with code 71, in time, and name the culprit

constexpr int ranks = 3;
constexpr int culprit = 2;

void shorten(ControlOptions& options) {
  options.timeout = milliseconds(1000);
}
constexpr double in_time = 1 + 5;

std::vector<RankResult> with_a_culprit(
    Transport transport, const std::function<void(Device&, Communicator&, const Tensor&)>& misbehave,
    bool stuck = false) {
  return run_gpu_group(
      transport, ranks,
      [&](ControlPlane& control, Device& device, Communicator& group) {
        std::vector<float> host(20'000, 1.0f);
        OnDevice x(device, Tensor(host.data(), DType::f32, {20'000}));
        for (int step = 0; step < 3; ++step)
          group.all_reduce(x.tensor(), Reduce::sum).wait();
        x.download();
        control.set_status("step 3");
        if (group.rank() == culprit) misbehave(device, group, x.tensor());
        group.all_reduce(x.tensor(), Reduce::sum).wait();
        x.download();  // where a GPU's host waits
        group.throw_if_failed();
      },
      15, stuck ? std::vector<int>{culprit} : std::vector<int>{}, shorten);
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

class GpuFailure : public Gpu {};
INSTANTIATE_TEST_SUITE_P(All, GpuFailure, testing::Values(Transport::nccl, Transport::staged),
                         [](const auto& info) {
                           return info.param == Transport::nccl ? std::string("nccl") : std::string("staged");
                         });

TEST_P(GpuFailure, DeadPeer) {
  const auto results =
      with_a_culprit(GetParam(), [](Device&, Communicator&, const Tensor&) { ::kill(::getpid(), SIGKILL); });
  expect_blamed(results, "died", 3);
}

TEST_P(GpuFailure, StoppedPeer) {
  const auto results = with_a_culprit(
      GetParam(), [](Device&, Communicator&, const Tensor&) { ::kill(::getpid(), SIGSTOP); }, true);
  expect_blamed(results, "silent", in_time);
}

TEST(NcclFailure, PeerThatHangsButLives) {
  const auto results = with_a_culprit(
      Transport::nccl,
      [](Device&, Communicator&, const Tensor&) { std::this_thread::sleep_for(std::chrono::seconds(60)); },
      true);
  expect_blamed(results, "did not take part in all_reduce(sum) ", in_time);
  expect_blamed(results, " of 20000 F32 on the data axis", in_time);
}

TEST_P(GpuFailure, LatePeerWithinTheTimeoutIsFine) {
  expect_success(with_a_culprit(GetParam(), [](Device&, Communicator&, const Tensor&) {
    std::this_thread::sleep_for(milliseconds(700));
  }));
}

TEST_P(GpuFailure, PeerWithAnErrorOfItsOwn) {
  const auto results = with_a_culprit(
      GetParam(), [](Device&, Communicator&, const Tensor&) { fail_data("rank 2 (here): shard 7 is torn"); });
  EXPECT_EQ(results[culprit].code, 65) << results[culprit].output;
  expect_blamed(results, "shard 7 is torn", 3, ExitCode::data);
}

// With counts or operations that differ nobody waits for ever, and nobody goes on.
// (Staging inherits Gloo's.)
TEST(NcclFailure, CallsThatDiffer) {
  const std::function<void(Communicator&, const Tensor&)> calls[] = {
      [](Communicator& group, const Tensor& x) { group.all_reduce(x.rows(0, 19'999), Reduce::sum).wait(); },
      [](Communicator& group, const Tensor& x) { group.broadcast(x, 0).wait(); },
  };
  for (const auto& call : calls) {
    const auto results =
        with_a_culprit(Transport::nccl, [&](Device& device, Communicator& group, const Tensor& x) {
          call(group, x);
          device.synchronize();
          group.throw_if_failed();
        });
    for (const RankResult& r : results) {
      EXPECT_TRUE(r.ended);
      EXPECT_EQ(r.code, 71) << r.output;
      EXPECT_LE(r.seconds, in_time);
      EXPECT_NE(r.output.find("did not take part in "), std::string::npos) << r.output;
    }
  }
}

TEST_P(GpuFailure, TransferWithoutACounterpart) {
  const auto results = run_gpu_group(
      GetParam(), 2,
      [](ControlPlane&, Device& device, Communicator& group) {
        float value = 0;
        OnDevice x(device, Tensor(&value, DType::f32, {1}));
        if (group.rank() == 0) group.recv(x.tensor(), 1).wait();
        x.download();
        group.throw_if_failed();
      },
      15, {}, shorten);
  for (const RankResult& r : results) {
    EXPECT_EQ(r.code, 71) << r.output;
    EXPECT_LE(r.seconds, in_time) << r.output;
  }
}

TEST_P(GpuFailure, ConnectingWithoutAPeer) {
  const auto results = run_ranks(
      3,
      [&](ControlPlane& control) {
        const auto device = device_of(GetParam(), control.rank(), 3);
        if (control.rank() == 2) ::kill(::getpid(), SIGKILL);
        GpuFabric fabric(GetParam(), control, *device);
        fabric.connect("data", {0, 1, 2});
      },
      15, {}, shorten);
  for (int rank : {0, 1}) {
    EXPECT_EQ(results[static_cast<size_t>(rank)].code, 71) << results[static_cast<size_t>(rank)].output;
    EXPECT_NE(results[static_cast<size_t>(rank)].output.find("rank 2"), std::string::npos);
  }
}

// A peer that does not come to NCCL's start although it lives.
TEST(NcclStart, EndsAfterTheTimeout) {
  const auto results = run_ranks(
      2,
      [&](ControlPlane& control) {
        const auto device = device_of(Transport::nccl, control.rank(), 2);
        if (control.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
        GpuFabric fabric(Transport::nccl, control, *device);
      },
      15, {1}, [](ControlOptions& options) { options.init_timeout = milliseconds(1500); });
  EXPECT_EQ(results[0].code, 71) << results[0].output;
  EXPECT_NE(results[0].output.find("NCCL's start on 2 ranks"), std::string::npos) << results[0].output;
  EXPECT_LE(results[0].seconds, 6);
}

TEST(NcclStart, RefusesTwoRanksOnOneGpu) {
  const auto results = run_ranks(
      2,
      [&](ControlPlane& control) {
        const auto device = device_of(Transport::staged, control.rank(), 2);  // both the first
        GpuFabric fabric(Transport::nccl, control, *device);
      },
      15);
  for (const RankResult& r : results)
    EXPECT_EQ(r.code, 72) << r.output;
}

}  // namespace
}  // namespace hearth
