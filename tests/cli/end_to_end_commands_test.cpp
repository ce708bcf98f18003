// The executable: what each command prints and leaves.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "support/train_run.h"

namespace hearth {
namespace {

using testing::hearth;
using testing::metrics;
using testing::Outcome;
using testing::run_program;
using testing::train_run;

TEST(TrainCommand, LearnsAndWritesWhatItPromises) {
  TempDir dir;
  const fs::path run = dir / "run";
  const Outcome outcome = run_program(hearth({"train", "configs/tiny.toml", "--run.dir=" + run.string()}));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(outcome.output.find('\r'), std::string::npos) << "progress characters in a log";
  EXPECT_NE(outcome.output.find("resume with: "), std::string::npos);
  const auto steps = metrics(run, "step");
  ASSERT_EQ(steps.size(), 60u);
  EXPECT_NEAR(steps[0].at("loss").get<double>(), std::log(256.0), 0.1);
  EXPECT_LT(steps[59].at("loss").get<double>(), 3.2);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].at("step"), i + 1);
    EXPECT_EQ(steps[i].at("tokens"), (i + 1) * 512);
    EXPECT_GT(steps[i].at("grad_norm").get<double>(), 0.0);
  }
  EXPECT_EQ(metrics(run, "eval").size(), 3u);
  EXPECT_EQ(metrics(run, "checkpoint").size(), 3u);
  ASSERT_EQ(metrics(run, "start").size(), 1u);
  EXPECT_EQ(metrics(run, "start")[0].at("parameters"), 220544);
  EXPECT_TRUE(metrics(run, "start")[0].contains("activation_bytes"));
  EXPECT_TRUE(metrics(run, "start")[0].contains("corpus"));
  EXPECT_TRUE(fs::exists(run / "config.toml"));
  EXPECT_EQ(read_file(run / "checkpoints" / "latest").substr(0, 13), "step-00000060");
  int kept = 0, events = 0;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    kept += entry.is_directory();
  for (const auto& entry : fs::directory_iterator(run))
    events += entry.path().filename().string().find("tfevents") != std::string::npos;
  EXPECT_EQ(kept, 2);  // checkpoint.keep
  EXPECT_EQ(events, 1);
  // The written configuration trains the same run again.
  const fs::path again = dir / "again";
  ASSERT_EQ(
      run_program(hearth({"train", (run / "config.toml").string(), "--run.dir=" + again.string()})).code, 0);
  EXPECT_EQ(metrics(again, "step"), steps);
}

TEST(TrainCommand, PrintConfigIsAConfig) {
  TempDir dir;
  const Outcome printed =
      run_program(hearth({"train", "configs/tiny.toml", "--train.steps=77", "--print-config"}));
  ASSERT_EQ(printed.code, 0);
  std::ofstream(dir / "printed.toml") << printed.output;
  const Outcome again = run_program(hearth({"train", (dir / "printed.toml").string(), "--print-config"}));
  EXPECT_NE(printed.output.find("steps = 77"), std::string::npos);
  // The run's name comes from the file's.
  std::string expected = printed.output;
  EXPECT_EQ(again.code, 0) << again.output;
  for (const char* key : {"steps = 77", "layers = 4", "lr = 0.003", "batch = 8"})
    EXPECT_NE(again.output.find(key), std::string::npos) << key;
}

TEST(TrainCommand, GradientsCanBeDumped) {
  TempDir dir;
  const fs::path dump = dir / "gradients";
  const Outcome outcome =
      train_run(dir / "run", {"--train.steps=2", "--debug.dump_gradients=" + dump.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Outcome inspected = run_program(hearth({"inspect", (dump / "step-00000002.safetensors").string()}));
  EXPECT_EQ(inspected.code, 0) << inspected.output;
  EXPECT_NE(inspected.output.find("h.1.attn.k.weight"), std::string::npos) << inspected.output;
}

TEST(TrainCommand, StopsAfterMinutes) {
  TempDir dir;
  const Outcome outcome = train_run(dir / "run", {"--train.steps=1000000", "--train.max_minutes=0.01"});
  EXPECT_EQ(outcome.code, 75) << outcome.output.substr(0, 2000);
}

TEST(GenerateCommand, IsAFunctionOfTheSeed) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "run").code, 0);
  const auto text = [&](const char* seed, const char* temperature) {
    const Outcome o = run_program(hearth({"generate", (dir / "run").string(), "--prompt", "The ", "--tokens",
                                          "90", "--seed", seed, "--temperature", temperature}));
    EXPECT_EQ(o.code, 0) << o.output;
    return o.output;
  };
  const std::string one = text("1", "1.0");
  EXPECT_EQ(one.substr(0, 4), "The ");
  EXPECT_EQ(text("1", "1.0"), one);
  EXPECT_NE(text("2", "1.0"), one);
  EXPECT_EQ(text("1", "0"), text("2", "0"));
}

TEST(EvalCommand, GivesTheTrainersLoss) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "run", {"--eval.tokens=0"}).code, 0);
  const double loss = metrics(dir / "run", "eval").back().at("val_loss");
  const Outcome outcome = run_program(hearth({"eval", (dir / "run").string()}));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.4f", loss);
  EXPECT_NE(outcome.output.find(digits), std::string::npos) << outcome.output << " lacks " << digits;
}

TEST(PrepareCommand, ShardsTrainLikeTheTextTheyCameFrom) {
  TempDir dir;
  const fs::path out = dir / "shards";
  const Outcome prepared = run_program(hearth(
      {"prepare", "data/tiny.txt", "--tokenizer", "byte", "--out", out.string(), "--val-fraction", "0.1"}));
  ASSERT_EQ(prepared.code, 0) << prepared.output;
  const Outcome a = train_run(dir / "text");
  const Outcome b =
      train_run(dir / "prepared", {"--data.train=" + (out / "train_*.bin").string(),
                                   "--data.val=" + (out / "val_*.bin").string(), "--data.tokenizer=auto"});
  ASSERT_EQ(b.code, 0) << b.output;
  EXPECT_EQ(metrics(dir / "text", "step"), metrics(dir / "prepared", "step"));
  for (const auto& entry : fs::directory_iterator(out)) {
    const Outcome inspected = run_program(hearth({"inspect", entry.path().string()}));
    EXPECT_EQ(inspected.code, 0) << entry.path() << ": " << inspected.output;
  }
}

TEST(HelpCommand, EveryCommandHasIt) {
  EXPECT_EQ(run_program(hearth({"--help"})).code, 0);
  EXPECT_EQ(run_program(hearth({"--version"})).code, 0);
  EXPECT_EQ(run_program(hearth({})).code, 2);
  for (const char* command : {"train", "generate", "eval", "prepare", "inspect"}) {
    const Outcome outcome = run_program(hearth({command, "--help"}));
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_NE(outcome.output.find(command), std::string::npos);
  }
  EXPECT_NE(run_program(hearth({"train", "--help"})).output.find("train.micro_batch"), std::string::npos);
}

}  // namespace
}  // namespace hearth
