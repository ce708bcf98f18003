// The executable: a run that is stopped and resumed is the run that was not.
#include <gtest/gtest.h>

#include "support/train_run.h"

namespace hearth {
namespace {

using testing::checkpoint_bytes;
using testing::metrics;
using testing::Outcome;
using testing::Process;
using testing::train_command;
using testing::train_run;
using testing::Words;

struct Variant {
  const char* name;
  Words options;
};

class Resume : public ::testing::TestWithParam<Variant> {};

// Stops at every kind of moment: after the first step, between checkpoints, at a checkpoint, before the last
// step. The corpus has 36 samples, so 12 steps of 8 cross an epoch's edge twice.
TEST_P(Resume, IsBitwise) {
  TempDir dir;
  Words options = GetParam().options;
  options.push_back("--data.val_fraction=0.7");
  const Outcome whole = train_run(dir / "whole", options);
  ASSERT_EQ(whole.code, 0) << whole.output;
  ASSERT_EQ(metrics(dir / "whole", "step").size(), 12u);
  for (const char* stop_after : {"1", "6", "4", "11"}) {
    const fs::path run = dir / (std::string("stopped-") + stop_after);
    Words first = options;
    first.push_back(std::string("--train.stop_after=") + stop_after);
    const Outcome stopped = train_run(run, first);
    ASSERT_EQ(stopped.code, 75) << stopped.output;
    EXPECT_NE(stopped.output.find("resume with: "), std::string::npos);
    const Outcome resumed = train_run(run, options);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_EQ(checkpoint_bytes(run, 12), checkpoint_bytes(dir / "whole", 12))
        << "stopped after " << stop_after;
    EXPECT_EQ(metrics(run, "step"), metrics(dir / "whole", "step"));
    EXPECT_EQ(metrics(run, "eval"), metrics(dir / "whole", "eval"));
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Resume,
                         ::testing::Values(Variant{"fp32", {}}, Variant{"bf16", {"--train.precision=bf16"}},
                                           Variant{"dropout",
                                                   {"--model.dropout=0.2", "--train.recompute=block"}},
                                           Variant{"accumulation",
                                                   {"--train.micro_batch=2", "--train.precision=bf16",
                                                    "--model.dropout=0.1", "--train.recompute=selective"}}),
                         [](const auto& info) { return info.param.name; });

TEST(Run, ThreadsEvaluationSamplingAndLoggingChangeNoBit) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "a", {"--device.threads=1"}).code, 0);
  const Words other[] = {{"--device.threads=2"},
                         {"--device.threads=3", "--eval.every=0"},
                         {"--sample.every=2", "--sample.tokens=20", "--log.every=100", "--eval.every=1"},
                         {"--log.tensorboard=false", "--checkpoint.every=0", "--train.recompute=block"}};
  for (const Words& options : other) {
    const fs::path run = dir / std::to_string(&options - other);
    const Outcome outcome = train_run(run, options);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_EQ(checkpoint_bytes(run, 12), checkpoint_bytes(dir / "a", 12)) << options[0];
    EXPECT_EQ(metrics(run, "step"), metrics(dir / "a", "step"));
  }
}

// The logged loss and the weights do not depend on how a batch is split.
TEST(Run, AccumulationGivesTheSameLosses) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "whole").code, 0);
  ASSERT_EQ(train_run(dir / "split", {"--train.micro_batch=2"}).code, 0);
  const auto whole = metrics(dir / "whole", "step");
  const auto split = metrics(dir / "split", "step");
  ASSERT_EQ(whole.size(), split.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    const double loss = whole[i].at("loss");
    EXPECT_NEAR(split[i].at("loss").get<double>(), loss, 1e-5 * loss) << "step " << i + 1;
    EXPECT_EQ(split[i].at("tokens"), whole[i].at("tokens"));
  }
}

// A signal at any moment: the code says which, the newest checkpoint is of the last step, and going on gives
// the same end.  Moments: during start-up, after the first step, during an evaluation or a sample, late.
TEST(Signals, SaveAndResumeAtAnyMoment) {
  TempDir dir;
  const Words long_run = {"--train.steps=60", "--sample.every=5", "--sample.tokens=300", "--eval.every=3",
                          "--eval.tokens=0"};
  ASSERT_EQ(train_run(dir / "whole", long_run).code, 0);
  const std::pair<int, int> signals[] = {{SIGINT, 130}, {SIGTERM, 143}, {SIGUSR1, 75}};
  const char* moments[] = {"hearth: training", "step 1/", "val_loss", "sample: ", "step 40/"};
  for (size_t i = 0; i < std::size(moments); ++i) {
    const auto [signal, code] = signals[i % std::size(signals)];
    const fs::path run = dir / std::to_string(i);
    Process process(train_command(run, long_run));
    ASSERT_TRUE(process.wait_for(moments[i])) << process.output();
    process.send(signal);
    const Outcome stopped = process.finish(20);
    if (stopped.code == 0) continue;  // it was done before the signal came
    EXPECT_EQ(stopped.code, code) << stopped.output;
    EXPECT_NE(stopped.output.find("resume with: "), std::string::npos) << stopped.output;
    const Outcome resumed = train_run(run, long_run);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_EQ(checkpoint_bytes(run, 60), checkpoint_bytes(dir / "whole", 60)) << moments[i];
    EXPECT_EQ(metrics(run, "eval"), metrics(dir / "whole", "eval")) << moments[i];
  }
}

TEST(Signals, TheSecondOneStopsAtOnce) {
  TempDir dir;
  Process process(train_command(dir / "run", {"--train.steps=100000", "--eval.every=1", "--eval.tokens=0"}));
  ASSERT_TRUE(process.wait_for("step 1/"));
  process.send(SIGSTOP);  // both signals arrive while it cannot run
  process.send(SIGINT);
  process.send(SIGTERM);
  process.send(SIGCONT);
  const Outcome outcome = process.finish(5);
  EXPECT_TRUE(outcome.code == 130 || outcome.code == 143) << outcome.code;
}

// kill -9 leaves a run that goes on from its newest whole checkpoint and ends with the same bytes.
TEST(Signals, KillIsSurvived) {
  TempDir dir;
  const Words options = {"--train.steps=40", "--checkpoint.every=2"};
  ASSERT_EQ(train_run(dir / "whole", options).code, 0);
  for (const char* moment : {"step 3/", "step-00000008", "step 21/", "step-00000030"}) {
    const fs::path run = dir / "killed";
    Process process(train_command(run, options));
    if (process.wait_for(moment)) process.send(SIGKILL);
    process.finish(20);
  }
  const Outcome resumed = train_run(dir / "killed", options);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(checkpoint_bytes(dir / "killed", 40), checkpoint_bytes(dir / "whole", 40));
  EXPECT_EQ(metrics(dir / "killed", "step"), metrics(dir / "whole", "step"));
  for (const auto& entry : fs::directory_iterator(dir / "killed" / "checkpoints"))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

TEST(Run, FallsBackToThePreviousCheckpointWhenTheNewestIsDamaged) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "run").code, 0);
  const std::string good = checkpoint_bytes(dir / "run", 12);
  const fs::path damaged = testing::checkpoint_of(dir / "run", 12) / "model-00000.safetensors";
  std::string bytes = read_file(damaged);
  bytes[bytes.size() / 2] ^= 1;
  write_file_atomically(damaged, bytes);
  const Outcome resumed = train_run(dir / "run");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("warning: "), std::string::npos) << resumed.output;
  EXPECT_NE(resumed.output.find("model-00000.safetensors"), std::string::npos);
  EXPECT_NE(resumed.output.find("step-00000008"), std::string::npos);
  EXPECT_EQ(checkpoint_bytes(dir / "run", 12), good);
  EXPECT_EQ(metrics(dir / "run", "step").size(), 12u);
}

TEST(Run, ACompleteRunSaysSo) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "run").code, 0);
  const Outcome again = train_run(dir / "run");
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.output.find("the run is complete at step 12"), std::string::npos) << again.output;
  const Outcome further = train_run(dir / "run", {"--train.steps=14"});
  EXPECT_EQ(further.code, 0);
  EXPECT_EQ(metrics(dir / "run", "step").size(), 14u);
}

TEST(Run, StartsFromAnotherRunsCheckpoint) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "a").code, 0);
  const std::string from = testing::checkpoint_of(dir / "a", 8).string();
  const Outcome outcome = train_run(dir / "b", {"--checkpoint.resume=" + from});
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(checkpoint_bytes(dir / "b", 12), checkpoint_bytes(dir / "a", 12));
  EXPECT_EQ(metrics(dir / "b", "step").size(), 4u);
  // Its own newest one by name: the metrics so far stay.
  const std::string own = testing::checkpoint_of(dir / "b", 12).string();
  ASSERT_EQ(train_run(dir / "b", {"--checkpoint.resume=" + own, "--train.steps=14"}).code, 0);
  EXPECT_EQ(metrics(dir / "b", "step").size(), 6u);
}

}  // namespace
}  // namespace hearth
