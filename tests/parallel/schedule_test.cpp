#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"

namespace hearth {
namespace {

struct Case {
  ScheduleKind kind;
  int stages, chunks, microbatches;
};

std::string name(const Case& c) {
  return text(name_of(c.kind), " P=", c.stages, " v=", c.chunks, " M=", c.microbatches);
}

template <class Test>
void for_all_schedules(const Test& test) {
  for (int P = 1; P <= 8; ++P)
    for (int M = 1; M <= 17; ++M) {
      test(Case{ScheduleKind::gpipe, P, 1, M});
      test(Case{ScheduleKind::one_f_one_b, P, 1, M});
      for (int v = 1; v <= 4; ++v)
        test(Case{ScheduleKind::forward_only, P, v, M});
      for (int v = 2; v <= 4; ++v)
        if (M % P == 0) test(Case{ScheduleKind::interleaved, P, v, M});
    }
}

TEST(Schedule, NobodyWaitsForEverAndTransfersMeetInOrder) {
  for_all_schedules([](const Case& c) {
    const Schedule schedule = make_schedule(c.kind, c.stages, c.chunks, c.microbatches);
    for (Sends sends : {Sends::waiting, Sends::buffered}) {
      const Simulation result = simulate(schedule, sends);
      ASSERT_FALSE(result.deadlock) << name(c) << (sends == Sends::waiting ? " waiting: " : " buffered: ")
                                    << result.trouble;
      ASSERT_EQ(result.trouble, "") << name(c);
    }
  });
}

TEST(Schedule, EveryMicrobatchOnceForwardsAndOnceBackwards) {
  for_all_schedules([](const Case& c) {
    const Schedule schedule = make_schedule(c.kind, c.stages, c.chunks, c.microbatches);
    const bool trains = c.kind != ScheduleKind::forward_only;
    for (const auto& actions : schedule.actions) {
      std::map<std::tuple<bool, int, int>, int> count;
      int last_backwards = 0;
      std::vector<int> left(static_cast<size_t>(c.chunks), c.microbatches);
      for (const Action& action : actions) {
        if (action.kind == Action::Kind::exchange) continue;
        const bool backward = action.kind == Action::Kind::backward;
        ++count[{backward, action.microbatch, action.chunk}];
        if (!backward) continue;
        ASSERT_EQ(action.last_backward, --left[static_cast<size_t>(action.chunk)] == 0) << name(c);
        last_backwards += action.last_backward;
      }
      ASSERT_EQ(static_cast<int>(count.size()), c.microbatches * c.chunks * (trains ? 2 : 1)) << name(c);
      for (const auto& [what, times] : count)
        ASSERT_EQ(times, 1) << name(c);
      ASSERT_EQ(last_backwards, trains ? c.chunks : 0);
    }
  });
}

TEST(Schedule, MicrobatchesInFlight) {
  for_all_schedules([](const Case& c) {
    const Simulation result =
        simulate(make_schedule(c.kind, c.stages, c.chunks, c.microbatches), Sends::buffered);
    for (int s = 0; s < c.stages; ++s) {
      const int P = c.stages, M = c.microbatches, v = c.chunks;
      const int most = c.kind == ScheduleKind::gpipe         ? M
                       : c.kind == ScheduleKind::one_f_one_b ? std::min(P - s, M)
                       : c.kind == ScheduleKind::interleaved
                           ? M == P ? M * v : std::min(2 * (P - s - 1) + (v - 1) * P + 1, M * v)
                           : 1;
      ASSERT_EQ(result.in_flight[static_cast<size_t>(s)], most) << name(c) << " stage " << s;
    }
  });
}

// (P - 1) / M of the ideal time, v times less when interleaved (Narayanan et al. 2021, section 2.2).
TEST(Schedule, Bubble) {
  for_all_schedules([](const Case& c) {
    if (c.kind == ScheduleKind::forward_only) return;
    const Simulation result =
        simulate(make_schedule(c.kind, c.stages, c.chunks, c.microbatches), Sends::buffered);
    ASSERT_NEAR(result.busy, 3.0 * c.microbatches, 1e-9) << name(c);
    ASSERT_NEAR(result.bubble(), (c.stages - 1.0) / (c.chunks * c.microbatches), 1e-9) << name(c);
  });
}

TEST(Schedule, BackwardsInTheOrderOfTheForwards) {
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 4, 1, 9);
  for (const auto& actions : schedule.actions) {
    int forward = 0, backward = 0;
    for (const Action& action : actions) {
      if (action.kind == Action::Kind::exchange) continue;
      int& next = action.kind == Action::Kind::forward ? forward : backward;
      EXPECT_EQ(action.microbatch, next++);
    }
  }
}

// In the steady state of 1f1b the activation leaves while a gradient arrives, and the other way round.
TEST(Schedule, TransfersAreFused) {
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 4);
  int fused = 0;
  for (const Action& action : schedule.actions[0])
    if (action.transfers.size() == 2) {
      EXPECT_NE(action.transfers[0].sends, action.transfers[1].sends);
      EXPECT_EQ(action.transfers[0].peer, 1);
      ++fused;
    }
  EXPECT_EQ(fused, 3);
}

TEST(Schedule, OneStageExchangesNothing) {
  for (int v : {1, 2}) {
    const auto kind = v == 1 ? ScheduleKind::one_f_one_b : ScheduleKind::interleaved;
    const Schedule schedule = make_schedule(kind, 1, v, 5);
    for (const Action& action : schedule.actions[0])
      EXPECT_NE(action.kind, Action::Kind::exchange);
  }
}

TEST(Schedule, RefusesWhatCannotBe) {
  EXPECT_THROW(make_schedule(ScheduleKind::interleaved, 4, 1, 8), Error);
  EXPECT_THROW(make_schedule(ScheduleKind::one_f_one_b, 4, 2, 8), Error);
  try {
    make_schedule(ScheduleKind::interleaved, 4, 2, 6);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("the nearest are 4 and 8"), std::string::npos);
  }
}

TEST(Schedule, PrintsAsATable) {
  EXPECT_EQ(table_of(make_schedule(ScheduleKind::one_f_one_b, 2, 1, 3)),
            "stage 0 | F0 F1 .  .  B0 -  F2 B1 -  .  B2 -\n"
            "stage 1 | .  F0 B0 -  F1 B1 -  F2 B2 -\n"
            "bubble 33.3% of the ideal time; 1f1b, 2 stages, 3 microbatches\n");
}

// ---- the simulator finds what is wrong

std::string trouble_after(const std::function<void(Schedule&)>& spoil) {
  Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 3, 1, 5);
  spoil(schedule);
  return simulate(schedule, Sends::waiting).trouble;
}

// The k-th action of a kind.
size_t find_action(const std::vector<Action>& actions, Action::Kind kind, int k) {
  for (size_t i = 0; i < actions.size(); ++i)
    if (actions[i].kind == kind && k-- == 0) return i;
  return actions.size();
}

TEST(Simulator, NoticesSpoiledSchedules) {
  using Kind = Action::Kind;
  EXPECT_EQ(trouble_after([](Schedule&) {}), "");
  const auto drop = [](Kind kind, int stage, int k) {
    return [=](Schedule& s) {
      auto& actions = s.actions[static_cast<size_t>(stage)];
      actions.erase(actions.begin() + static_cast<long>(find_action(actions, kind, k)));
    };
  };
  for (int stage = 0; stage < 3; ++stage)
    for (int k = 0; k < 5; ++k)
      for (Kind kind : {Kind::forward, Kind::backward, Kind::exchange})
        EXPECT_NE(trouble_after(drop(kind, stage, k)), "") << stage << " " << k;
  // Two forwards swapped with their microbatches: first in, first out is broken.
  EXPECT_NE(trouble_after([](Schedule& s) {
              for (Action& action : s.actions[1])
                for (StageTransfer& t : action.transfers)
                  if (t.sends && !t.gradient && t.microbatch < 2) t.microbatch = 1 - t.microbatch;
            }),
            "");
  // A fused exchange taken apart: both sides send first and wait.
  EXPECT_NE(trouble_after([](Schedule& s) {
              for (size_t stage = 0; stage < 2; ++stage) {
                std::vector<Action> apart;
                for (const Action& action : s.actions[stage]) {
                  if (action.transfers.size() < 2) {
                    apart.push_back(action);
                    continue;
                  }
                  for (const StageTransfer& t : action.transfers)
                    apart.push_back({Kind::exchange, 0, 0, {t}, false});
                }
                s.actions[stage] = apart;
              }
            }),
            "");
}

}  // namespace
}  // namespace hearth
