// The control plane: gathering, refusing, keys, barriers, and how a failure reaches every rank.
#include "comm/control_plane.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "comm/wire.h"
#include "support/ranks.h"

namespace hearth {
namespace {

using std::chrono::milliseconds;

void expect_all(const std::vector<RankResult>& results, int code, const std::string& words, double within) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_TRUE(results[rank].ended) << "rank " << rank << " hangs";
    EXPECT_EQ(results[rank].code, code) << "rank " << rank << ": " << results[rank].output;
    EXPECT_NE(results[rank].output.find(words), std::string::npos)
        << "rank " << rank << ": " << results[rank].output;
    EXPECT_LE(results[rank].seconds, within);
  }
}

void nothing(ControlPlane&) {}

TEST(Wire, RoundTripsInPieces) {
  const std::string message = wire::Writer().u32(7).string("key").u64(1ull << 40).message(wire::Kind::put);
  wire::Inbox inbox;
  for (char c : message + message) {
    inbox.append({&c, 1});
    if (auto got = inbox.next()) {
      wire::Reader in(got->payload);
      EXPECT_EQ(got->kind, wire::Kind::put);
      EXPECT_EQ(in.u32(), 7u);
      EXPECT_EQ(in.string(), "key");
      EXPECT_EQ(in.u64(), 1ull << 40);
      EXPECT_TRUE(in.ok());
      EXPECT_EQ(in.u32(), 0u);
      EXPECT_FALSE(in.ok());
    }
  }
  EXPECT_FALSE(inbox.bad());
  inbox.append("GET / HTTP/1.1\r\n");
  EXPECT_FALSE(inbox.next());
  EXPECT_TRUE(inbox.bad());
}

TEST(ControlPlane, AloneNeedsNobody) {
  ControlPlane control(ControlOptions{});
  control.put("a", "1");
  EXPECT_EQ(control.get("a"), "1");
  control.barrier("x");
  control.leave();
}

TEST(ControlPlane, KeysBarriersAndMembers) {
  const auto results = run_ranks(
      7,
      [](ControlPlane& control) {
        const std::string own = std::to_string(control.rank());
        require(control.member(control.rank()).pid == ::getpid(), "own pid");
        require(control.member(control.rank()).address == "127.0.0.1", "own address");
        for (int round = 0; round < 20; ++round) {
          const std::string key = text("key", round, "/");
          control.put(key + own, own);
          for (int other = 0; other < control.world(); ++other)
            require(control.get(key + std::to_string(other)) == std::to_string(other), "value of ", other);
          control.barrier("round");
        }
      },
      20);
  expect_all(results, 0, "", 10);
}

// A barrier holds everybody until the last one has come.
TEST(ControlPlane, BarrierWaitsForTheLast) {
  const auto results = run_ranks(
      3,
      [](ControlPlane& control) {
        if (control.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(300));
          control.put("late", "yes");
        }
        const auto before = Clock::now();
        control.barrier("b");
        require(control.rank() == 1 || Clock::now() - before > milliseconds(250), "the barrier opened early");
      },
      10);
  expect_all(results, 0, "", 5);
}

TEST(ControlPlane, BarrierWithoutARankNamesIt) {
  const auto results = run_ranks(
      4,
      [](ControlPlane& control) {
        control.set_status("step 12");
        if (control.rank() == 3) std::this_thread::sleep_for(milliseconds(1200));
        if (control.rank() != 3) control.barrier("save", milliseconds(700));
        control.throw_if_failed();
      },
      10);
  expect_all(results, 71, "barrier 'save #1' waited in vain for rank 3 (", 3);
  EXPECT_NE(results[0].output.find("step 12"), std::string::npos);
}

TEST(ControlPlane, MissingRanksAreListed) {
  const auto results = run_ranks(6, nothing, 10, {}, [](ControlOptions& options) {
    options.init_timeout = milliseconds(500);
    if (options.where.rank == 2 || options.where.rank == 5) ::_exit(7);
  });
  for (size_t rank : {0, 1, 3, 4}) {
    EXPECT_EQ(results[rank].code, 71);
    EXPECT_NE(results[rank].output.find("only 4 of 6 ranks came within 0.5 s; missing: ranks 2, 5"),
              std::string::npos)
        << results[rank].output;
  }
}

TEST(ControlPlane, ALateRankIsWaitedFor) {
  expect_all(run_ranks(3, nothing, 10, {},
                       [](ControlOptions& options) {
                         if (options.where.rank != 1) std::this_thread::sleep_for(milliseconds(600));
                       }),
             0, "", 5);
}

TEST(ControlPlane, AbsentMaster) {
  const Descriptor listener = listen_on(0);
  const int port = port_of(listener);
  Ranks ranks(1, [&](int) {
    ControlOptions options = local_options(1, 2, listener);
    const_cast<Descriptor&>(listener).close();
    options.init_timeout = milliseconds(300);
    ControlPlane control(options);
    return 0;
  });
  const_cast<Descriptor&>(listener).close();
  expect_all(ranks.wait(10), 71, text("cannot reach rank 0 at 127.0.0.1:", port), 5);
}

TEST(ControlPlane, UnknownHost) {
  ControlOptions options;
  options.where = {1, 2, 0, "no-such-host.invalid", 1234, "", -1, "flags"};
  options.init_timeout = milliseconds(500);
  try {
    ControlPlane control(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer);
    EXPECT_NE(std::string(error.what()).find("no-such-host.invalid"), std::string::npos);
  }
}

TEST(ControlPlane, PortInUse) {
  const Descriptor taken = listen_on(0);
  ControlOptions options;
  options.where = {0, 2, 0, "127.0.0.1", port_of(taken), "", -1, "flags"};
  try {
    ControlPlane control(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer);
    EXPECT_NE(std::string(error.what()).find(text("port ", port_of(taken), ": Address already in use")),
              std::string::npos)
        << error.what();
  }
}

// What does not fit ends all ranks with one sentence and exit code 2.
TEST(ControlPlane, TwoRanksWithOneNumber) {
  expect_all(run_ranks(4, nothing, 10, {},
                       [](ControlOptions& options) {
                         if (options.where.rank == 3) options.where.rank = 1;
                       }),
             2, "two processes say that they are rank 1", 5);
}

TEST(ControlPlane, DifferentWorldSizes) {
  expect_all(run_ranks(3, nothing, 10, {},
                       [](ControlOptions& options) {
                         if (options.where.rank == 2) options.where.world = 4;
                       }),
             2, "was told that there are 4 ranks", 5);
}

TEST(ControlPlane, DifferentConfigurations) {
  expect_all(run_ranks(3, nothing, 10, {},
                       [](ControlOptions& options) {
                         if (options.where.rank == 2) options.config = "other";
                       }),
             2, "has configuration other, but rank 0", 5);
}

TEST(ControlPlane, DifferentBuilds) {
  expect_all(run_ranks(3, nothing, 10, {},
                       [](ControlOptions& options) {
                         if (options.where.rank == 1) options.build = "older";
                       }),
             2, "is build older, but rank 0", 5);
}

TEST(ControlPlane, OneDeviceForTwo) {
  expect_all(run_ranks(3, nothing, 10, {}, [](ControlOptions& options) { options.device = "GPU-1"; }), 2,
             "both use device GPU-1", 5);
}

// Another job's process, noise, and silence do not disturb the gathering.
TEST(ControlPlane, StrangersAreIgnored) {
  const Descriptor listener = listen_on(0);
  Ranks ranks(4, [&](int rank) {
    ControlOptions options = local_options(rank, 3, listener);
    if (rank == 3) {  // a stranger
      std::string reason;
      const auto soon = Clock::now() + milliseconds(2000);
      const Descriptor silent = connect_to("127.0.0.1", port_of(listener), soon, reason);
      const Descriptor noisy = connect_to("127.0.0.1", port_of(listener), soon, reason);
      write_all(noisy, std::string(70'000, 'x'), soon);
      options.where.rank = 1;
      options.where.token = "another job";
      options.init_timeout = milliseconds(300);
      ControlPlane control(options);
    } else {
      std::this_thread::sleep_for(milliseconds(rank == 0 ? 0 : 500));
      ControlPlane control(options);
      control.leave();
    }
    return 0;
  });
  const auto results = ranks.wait(10);
  for (size_t rank : {0, 1, 2})
    EXPECT_EQ(results[rank].code, 0) << results[rank].output;
  EXPECT_EQ(results[3].code, 71);
  EXPECT_NE(results[3].output.find("another job"), std::string::npos) << results[3].output;
}

// A process that is started twice by mistake is sent away; the run goes on.
TEST(ControlPlane, ALatecomerDoesNotEndTheRun) {
  const Descriptor listener = listen_on(0);
  Ranks ranks(3, [&](int rank) {
    ControlOptions options = local_options(rank == 2 ? 1 : rank, 2, listener);
    if (rank == 2) std::this_thread::sleep_for(milliseconds(500));
    ControlPlane control(options);
    std::this_thread::sleep_for(milliseconds(1000));
    control.leave();
    return 0;
  });
  const auto results = ranks.wait(10);
  EXPECT_EQ(results[0].code, 0) << results[0].output;
  EXPECT_EQ(results[1].code, 0) << results[1].output;
  EXPECT_EQ(results[2].code, 2);
}

class Killed : public testing::TestWithParam<int> {};

TEST_P(Killed, EveryRankNamesTheDead) {
  const int victim = GetParam();
  const auto results = run_ranks(
      5,
      [&](ControlPlane& control) {
        control.set_status("step 41");
        control.barrier("start");
        if (control.rank() == victim) ::kill(::getpid(), SIGKILL);
        control.wait_for_failure(milliseconds(5000));
        control.throw_if_failed();
      },
      10);
  for (int rank = 0; rank < 5; ++rank) {
    if (rank == victim) continue;
    const RankResult& r = results[static_cast<size_t>(rank)];
    EXPECT_EQ(r.code, 71);
    EXPECT_NE(r.output.find(text("rank ", victim, " (")), std::string::npos) << r.output;
    EXPECT_LE(r.seconds, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Killed, testing::Values(0, 2, 4));

class Stopped : public testing::TestWithParam<int> {};

TEST_P(Stopped, EveryRankNamesTheSilent) {
  const int victim = GetParam();
  const auto results = run_ranks(
      4,
      [&](ControlPlane& control) {
        control.barrier("start");
        if (control.rank() == victim) ::kill(::getpid(), SIGSTOP);
        control.wait_for_failure(milliseconds(8000));
        control.throw_if_failed();
      },
      15, {victim}, [](ControlOptions& options) { options.timeout = milliseconds(1000); });
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    const RankResult& r = results[static_cast<size_t>(rank)];
    EXPECT_EQ(r.code, 71);
    EXPECT_NE(r.output.find(text("rank ", victim, " (")), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("silent"), std::string::npos) << r.output;
    EXPECT_LE(r.seconds, 1 + 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Stopped, testing::Values(0, 3));

TEST(ControlPlane, AnErrorReachesEveryRankWithItsCode) {
  expect_all(run_ranks(
                 5,
                 [](ControlPlane& control) {
                   control.barrier("start");
                   if (control.rank() == 3) fail_data("rank 3: shard 7 is torn");
                   control.barrier("never");
                 },
                 10),
             65, "shard 7 is torn", 2);
}

TEST(ControlPlane, LeavingWithoutTheOthersIsAFailure) {
  const auto results = run_ranks(
      3,
      [](ControlPlane& control) {
        control.barrier("start");
        if (control.rank() == 1) ::_exit(0);  // no goodbye
        control.barrier("never");
      },
      10);
  EXPECT_EQ(results[0].code, 71);
  EXPECT_EQ(results[2].code, 71);
  EXPECT_NE(results[2].output.find("rank 1 ("), std::string::npos);
}

}  // namespace
}  // namespace hearth
