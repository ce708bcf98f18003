// The executable as several ranks, when things go wrong: signals, lost and stopped ranks,
// full disks, bad input.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <random>
#include <thread>

#include "comm/failure.h"
#include "comm/socket.h"
#include "support/launch_run.h"

namespace hearth {
namespace {

using testing::by_hand;
using testing::checkpoint_files;
using testing::last_line;
using testing::layout_command;
using testing::layout_run;
using testing::metrics;
using testing::Outcome;
using testing::Process;
using testing::RankLayout;
using testing::ranks_of;
using testing::run_together;
using testing::Words;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void sleep_ms(int64_t ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// ---- signals to the launcher

// Moments: start-up, in a step, in an evaluation (every third step), while saving (every eighth), late.
TEST(LaunchSignals, SaveAndResumeAtAnyMoment) {
  TempDir dir;
  const Words long_run = {"--train.steps=24", "--eval.tokens=0", "--checkpoint.every=8"};
  const RankLayout layouts[] = {testing::tensor2(), testing::data2_zero()};
  for (const RankLayout& layout : layouts)
    ASSERT_EQ(layout_run(layout, dir / layout.name, long_run).code, 0);
  const std::pair<int, int> signals[] = {{SIGINT, 130}, {SIGTERM, 143}, {SIGUSR1, 75}};
  const char* moments[] = {"hearth: training", "step 1/",          "step 3/",
                           "step 8/",          "step 9  val_loss", "step 20/"};
  for (size_t i = 0; i < std::size(moments); ++i) {
    const auto [signal, code] = signals[i % std::size(signals)];
    const RankLayout& layout = layouts[i % std::size(layouts)];
    const fs::path run = dir / std::to_string(i);
    Process process(layout_command(layout, run, long_run));
    ASSERT_TRUE(process.wait_for(moments[i])) << process.output();
    process.send(signal);
    const Outcome stopped = process.finish(20);
    EXPECT_EQ(testing::processes_with(run.string()), 0) << moments[i];
    if (stopped.code == 0) continue;  // it was done before the signal came
    EXPECT_EQ(stopped.code, code) << stopped.output;
    EXPECT_NE(stopped.output.find("resume with: "), std::string::npos) << stopped.output;
    const Outcome resumed = layout_run(layout, run, long_run);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_NE(resumed.output.find("start      from "), std::string::npos);
    EXPECT_EQ(resumed.output.find("from scratch"), std::string::npos) << moments[i] << ": nothing was saved";
    EXPECT_TRUE(checkpoint_files(run, 24) == checkpoint_files(dir / layout.name, 24)) << moments[i];
    EXPECT_EQ(metrics(run, "eval"), metrics(dir / layout.name, "eval")) << moments[i];
  }
}

// Ranks that wait for others that never come are free to go.
TEST(LaunchSignals, EndTheWaitForOtherRanks) {
  TempDir dir;
  const Words train = layout_command(testing::one(), dir / "run");
  const int port = port_of(listen_on(0));
  const std::pair<int, int> signals[] = {{SIGTERM, 143}, {SIGINT, 130}, {SIGUSR1, 75}};
  for (const int rank : {0, 1})  // rank 1 finds nobody who listens
    for (const auto& [signal, code] : signals) {
      Process process(by_hand(rank, 3, port, train));
      sleep_ms(500);
      process.send(signal);
      const Outcome outcome = process.finish(5);
      EXPECT_EQ(outcome.code, code) << outcome.output;
      EXPECT_NE(outcome.output.find("before all ranks had come"), std::string::npos) << outcome.output;
    }
}

// Two launchers, as on two hosts, know each other by HEARTH_TOKEN, or by none.
TEST(Launchers, OfTwoHostsMeet) {
  TempDir dir;
  for (const char* token : {"HEARTH_TOKEN=", "HEARTH_TOKEN=secret"}) {
    const fs::path run = dir / token;
    const std::string master = "127.0.0.1:" + std::to_string(port_of(listen_on(0)));
    std::vector<Words> commands;
    for (const char* first : {"0", "2"}) {
      Words words = layout_command(testing::tensor2_data2(), run);
      words.insert(words.begin(), {"env", token});
      words[5] = "2";  // env TOKEN hearth launch -n 2
      words.insert(words.begin() + 6, {"--world-size", "4", "--first-rank", first, "--master", master});
      commands.push_back(words);
    }
    for (const Outcome& outcome : run_together(commands))
      EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_EQ(metrics(run, "step").size(), 7u);
  }
}

// ---- ranks that are lost

// A run that goes on until something ends it.
class EndlessRun {
 public:
  EndlessRun(const RankLayout& layout, const fs::path& run, Words more = {}) : run_(run) {
    more.insert(more.begin(), {"--train.steps=100000", "--log.every=100000"});
    process_ = std::make_unique<Process>(layout_command(layout, run, more));
    for (int tries = 0; tries < 500 && std::cmp_less(ranks().size(), layout.ranks); ++tries)
      sleep_ms(2);
    EXPECT_EQ(ranks().size(), static_cast<size_t>(layout.ranks)) << "one direct child for each rank";
    if (!ranks().empty()) port_ = std::stoi(testing::variable_of(ranks().begin()->second, "MASTER_PORT"));
  }

  std::map<int, pid_t> ranks() const { return ranks_of(process_->pid()); }
  Process& process() { return *process_; }

  // The run ends within `limit` seconds with a last line that names the rank, and nothing is left of it.
  // Gives the seconds that it took.
  double expect_end(int rank, pid_t pid, double limit, int code) {
    const Clock::time_point start = Clock::now();
    const Outcome outcome = process_->finish(limit + 10);
    const double seconds = seconds_since(start);
    EXPECT_LT(seconds, limit) << outcome.output;
    EXPECT_EQ(outcome.code, code) << outcome.output;
    const std::string line = last_line(outcome.output);
    EXPECT_TRUE(line.starts_with("launch: ")) << outcome.output;
    const std::string who = describe(rank, Member{host_name(), pid, ""});
    EXPECT_NE(line.find(who), std::string::npos) << who << " is not named in the last line: " << line;
    EXPECT_EQ(testing::processes_with(run_.string()), 0) << outcome.output;
    EXPECT_NO_THROW(listen_on(port_)) << "the port is still taken";
    return seconds;
  }

 private:
  const fs::path run_;
  std::unique_ptr<Process> process_;
  int port_ = 0;
};

// HEARTH_KILL_TRIALS asks for more, and for their times.
TEST(LostRank, AnyRankAtAnyMomentEndsTheRun) {
  TempDir dir;
  const char* wanted = std::getenv("HEARTH_KILL_TRIALS");
  const int trials = wanted ? std::stoi(wanted) : 8;
  std::mt19937 random(7);
  const RankLayout layouts[] = {testing::data3(), testing::tensor2(), testing::pipeline2()};
  std::vector<double> seconds;
  for (int trial = 0; trial < trials; ++trial) {
    const RankLayout& layout = layouts[trial % std::size(layouts)];
    EndlessRun run(layout, dir / std::to_string(trial));
    if (trial > 1) sleep_ms(random() % 900);  // the first two: before the ranks have met
    const int rank = static_cast<int>(random() % static_cast<unsigned>(layout.ranks));
    const pid_t pid = run.ranks().at(rank);
    ::kill(pid, SIGKILL);
    SCOPED_TRACE(text("trial ", trial, ": ", layout.name, ", rank ", rank));
    seconds.push_back(run.expect_end(rank, pid, 3, 137));
  }
  std::sort(seconds.begin(), seconds.end());
  if (wanted && !seconds.empty())
    std::cout << trials << " ends after " << seconds.front() << " to " << seconds.back() << " s, median "
              << seconds[seconds.size() / 2] << " s\n";
}

// The last line says what the lost rank was doing, and in which operation another one waited for it.
TEST(LostRank, TheLastLineTellsStepAndOperation) {
  TempDir dir;
  EndlessRun run(testing::data3(), dir / "run", {"--checkpoint.every=0", "--eval.every=0"});
  ASSERT_TRUE(run.process().wait_for("step 1/"));
  sleep_ms(200);
  const pid_t pid = run.ranks().at(1);
  ::kill(pid, SIGKILL);
  run.expect_end(1, pid, 3, 137);
  const std::string line = last_line(run.process().output());
  EXPECT_NE(line.find("was killed by signal 9"), std::string::npos) << line;
  EXPECT_NE(line.find("last known of it: step "), std::string::npos) << line;
  EXPECT_NE(line.find(" was in "), std::string::npos) << line;
}

// A checkpoint that fails because a rank is gone is no full disk: the run ends, and does not say otherwise.
TEST(LostRank, WhileSavingEndsTheRunToo) {
  TempDir dir;
  EndlessRun run(testing::data2_zero(), dir / "run",
                 {"--log.every=1", "--checkpoint.every=1", "--eval.every=0"});
  ASSERT_TRUE(run.process().wait_for("step 1/"));
  const pid_t pid = run.ranks().at(1);
  // Rank 0 has logged a step and waits for rank 1 in order to save it.
  const auto saving = [&] { return last_line(run.process().output()).find("  loss ") != std::string::npos; };
  for (int tries = 0; tries < 50; ++tries) {
    ::kill(pid, SIGSTOP);
    run.process().wait_for("no such words", 0.3);
    if (saving()) break;
    ::kill(pid, SIGCONT);
    sleep_ms(tries);
  }
  ASSERT_TRUE(saving()) << run.process().output();
  ::kill(pid, SIGKILL);
  run.expect_end(1, pid, 3, 137);
  EXPECT_EQ(run.process().output().find("training goes on"), std::string::npos) << run.process().output();
}

TEST(LostRank, AStoppedRankEndsTheRunAfterTheTimeout) {
  TempDir dir;
  for (const int rank : {1, 0}) {
    EndlessRun run(testing::data2(), dir / std::to_string(rank), {"--parallel.timeout=1"});
    ASSERT_TRUE(run.process().wait_for("step-00000004"));
    const pid_t pid = run.ranks().at(rank);
    ::kill(pid, SIGSTOP);
    run.expect_end(rank, pid, 1 + 5, 71);
  }
}

// The newest checkpoint before the loss continues the run.
TEST(LostRank, TheRunGoesOnFromItsNewestCheckpoint) {
  TempDir dir;
  const Words steps = {"--train.steps=30"};
  ASSERT_EQ(layout_run(testing::pipeline2(), dir / "whole", steps).code, 0);
  Process process(layout_command(testing::pipeline2(), dir / "run", steps));
  ASSERT_TRUE(process.wait_for("step 10/"));
  ::kill(ranks_of(process.pid()).at(1), SIGKILL);
  ASSERT_EQ(process.finish(10).code, 137);
  const Outcome resumed = layout_run(testing::pipeline2(), dir / "run", steps);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("start      from "), std::string::npos) << resumed.output;
  EXPECT_EQ(resumed.output.find("from scratch"), std::string::npos) << resumed.output;
  EXPECT_TRUE(checkpoint_files(dir / "run", 30) == checkpoint_files(dir / "whole", 30));
  EXPECT_EQ(metrics(dir / "run", "step"), metrics(dir / "whole", "step"));
}

// Rank 1 may write 20 KiB only: no rank keeps a checkpoint, all train to the end and say the same.
TEST(FullDisk, OfOneRankIsEveryRanksDecision) {
  TempDir dir;
  Words train = layout_command(testing::one(), dir / "run", {"--parallel.tensor=2"});
  const int port = port_of(listen_on(0));
  std::string limited = "trap '' XFSZ; ulimit -f 20; exec";
  for (const std::string& word : train)
    limited += " '" + word + "'";
  const auto outcomes =
      run_together({by_hand(0, 2, port, train), by_hand(1, 2, port, {"bash", "-c", limited})});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, 65) << outcome.output;
    EXPECT_NE(last_line(outcome.output).find("cannot save the checkpoint of step 7"), std::string::npos)
        << outcome.output;
  }
  EXPECT_NE(outcomes[0].output.find("no checkpoint at step 4"), std::string::npos) << outcomes[0].output;
  EXPECT_NE(outcomes[0].output.find("step 7/7"), std::string::npos) << outcomes[0].output;
  EXPECT_EQ(metrics(dir / "run", "step").size(), 7u);
  for (const auto& entry : fs::directory_iterator(dir / "run" / "checkpoints"))
    ADD_FAILURE() << "left behind: " << entry.path();
}

// ---- bad input

// One sentence of this rank, and all of `parts` in it.
void expect_sentence(const std::string& output, const std::string& start, const Words& parts,
                     const std::string& what) {
  const size_t at = output.find(start);
  ASSERT_NE(at, std::string::npos) << what << " has no line '" << start << "': " << output;
  const std::string line = output.substr(at, output.find('\n', at) - at);
  for (const std::string& part : parts)
    EXPECT_NE(line.find(part), std::string::npos) << what << " does not say " << part << ": " << line;
}

struct BadLayout {
  int ranks;
  Words options;
  Words says;
};

TEST(BadLayouts, AreRefusedByEveryRankBeforeAnythingIsCreated) {
  TempDir dir;
  const BadLayout cases[] = {
      {3, {"--parallel.tensor=2"}, {"3 processes", "parallel.tensor 2", "2 or 4"}},
      {2, {"--parallel.data=3"}, {"2 processes", "parallel.data 3", "hearth launch -n 3"}},
      {3, {"--parallel.tensor=3"}, {"parallel.tensor", "3", "4"}},
      {3, {"--model.heads=3", "--model.channels=48", "--parallel.tensor=3"}, {"parallel.tensor", "3", "256"}},
      {5, {"--parallel.pipeline=5"}, {"parallel.pipeline", "5", "model.layers", "4"}},
      {2, {"--train.micro_batch=4"}, {"train.batch = 12", "4 x 2", "8 and 16"}},
      {2, {"--train.batch=9"}, {"train.batch = 9", "8 and 16"}},
  };
  for (const BadLayout& c : cases) {
    const fs::path run = dir / "run";
    const RankLayout layout{"bad", c.ranks, c.options};
    const Outcome outcome = layout_run(layout, run);
    const std::string what = c.options.back();
    EXPECT_EQ(outcome.code, 2) << what << ": " << outcome.output;
    for (int rank = 0; rank < c.ranks; ++rank)
      expect_sentence(outcome.output, text("[", rank, "] hearth: "), c.says, what);
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), c.ranks + 1)
        << what << ": a sentence of each rank and one of the launcher: " << outcome.output;
    expect_sentence(last_line(outcome.output), "launch: ", c.says, what);
    EXPECT_FALSE(fs::exists(run)) << what << " left a run directory";
  }
}

TEST(BadRendezvous, TwoRanksWithOneNumber) {
  TempDir dir;
  const Words train = layout_command(testing::one(), dir / "run");
  const int port = port_of(listen_on(0));
  const auto outcomes =
      run_together({by_hand(0, 3, port, train), by_hand(1, 3, port, train), by_hand(1, 3, port, train)});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    expect_sentence(outcome.output, "hearth: ", {"two processes say that they are rank 1", "RANK"}, "twins");
  }
  EXPECT_FALSE(fs::exists(dir / "run"));
}

TEST(BadRendezvous, RanksWithOtherConfigurationsOrWorlds) {
  TempDir dir;
  const Words train = layout_command(testing::one(), dir / "run");
  const Words other = layout_command(testing::one(), dir / "run", {"--train.seed=2"});
  const int port = port_of(listen_on(0));
  for (const Outcome& outcome : run_together({by_hand(0, 2, port, train), by_hand(1, 2, port, other)})) {
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    expect_sentence(outcome.output, "hearth: ", {"rank 1", "configuration", "same file"}, "configuration");
  }
  for (const Outcome& outcome : run_together({by_hand(0, 2, port, train), by_hand(1, 3, port, train)})) {
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    expect_sentence(outcome.output, "hearth: ", {"3 ranks", "2"}, "world");
  }
  EXPECT_FALSE(fs::exists(dir / "run"));
}

TEST(BadRendezvous, PortsAndHosts) {
  TempDir dir;
  const Words train = layout_command(testing::one(), dir / "run");
  const Descriptor busy = listen_on(0);
  const std::string port = std::to_string(port_of(busy));
  for (const Outcome& outcome : run_together({by_hand(0, 2, port_of(busy), train)})) {
    EXPECT_EQ(outcome.code, 71) << outcome.output;
    expect_sentence(outcome.output, "hearth: ", {port, "use"}, "busy port");
  }
  Words launched = train;
  launched.insert(launched.begin() + 1, {"launch", "-n", "2", "--master", "127.0.0.1:" + port});
  const Outcome refused = testing::run_program(launched);
  EXPECT_EQ(refused.code, 71) << refused.output;
  expect_sentence(refused.output, "hearth: ", {port, "use"}, "busy port");
  EXPECT_EQ(std::count(refused.output.begin(), refused.output.end(), '\n'), 1) << refused.output;
  for (const Outcome& outcome : run_together({by_hand(1, 2, 29500, train, "no-such-host.invalid")})) {
    EXPECT_EQ(outcome.code, 71) << outcome.output;
    expect_sentence(outcome.output, "hearth: ", {"no-such-host.invalid"}, "unknown host");
  }
  for (const Words& partial : {Words{"env", "RANK=0"}, Words{"env", "RANK=2", "WORLD_SIZE=2"}}) {
    Words command = partial;
    command.insert(command.end(), train.begin(), train.end());
    const Outcome outcome = testing::run_program(command);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    expect_sentence(outcome.output, "hearth: ", {"RANK"}, "part of an environment");
  }
  EXPECT_FALSE(fs::exists(dir / "run"));
}

}  // namespace
}  // namespace hearth
