// The executable against bad input: one clear sentence, the right exit code, and nothing left behind that a
// later run could take for good.
#include <gtest/gtest.h>

#include <fstream>

#include "support/train_run.h"

namespace hearth {
namespace {

using testing::hearth;
using testing::Outcome;
using testing::run_program;
using testing::train_run;
using testing::Words;

void write(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// One line on stderr that starts with "hearth: " and says all of `parts`.
void expect_refused(const Outcome& outcome, int code, const std::vector<std::string>& parts,
                    const std::string& what) {
  EXPECT_EQ(outcome.code, code) << what << ": " << outcome.output;
  const size_t at = outcome.output.rfind("hearth: ");
  ASSERT_NE(at, std::string::npos) << what << ": " << outcome.output;
  const std::string sentence = outcome.output.substr(at);
  EXPECT_EQ(std::count(sentence.begin(), sentence.end(), '\n'), 1) << what << ": " << sentence;
  for (const std::string& part : parts)
    EXPECT_NE(sentence.find(part), std::string::npos) << what << " does not say " << part << ": " << sentence;
}

struct BadOption {
  Words options;
  int code;
  std::vector<std::string> says;
};

TEST(BadInput, ConfigurationsAreRefusedBeforeAnythingIsCreated) {
  TempDir dir;
  const fs::path data = dir / "data";
  fs::create_directory(data);
  write(data / "short.txt", "only a few");
  write(data / "empty.txt", "");
  write(data / "foreign.bin", std::string("\x89PNG\r\n\x1a\n", 8) + std::string(64, '\1') + "x");
  write(data / "odd.bin", std::string(4097, '\1'));
  std::string tokens;
  for (int i = 0; i < 4000; ++i)
    tokens +=
        {static_cast<char>(i == 700 ? 0x2c : 1), static_cast<char>(i == 700 ? 1 : 0)};  // 300 at offset 700
  write(data / "tokens.bin", tokens);

  const std::vector<BadOption> cases = {
      {{"--train.stepz=3"}, 2, {"train.stepz", "train.steps"}},
      {{"--trian.steps=3"}, 2, {"trian", "train"}},
      {{"--train.steps=many"}, 2, {"train.steps", "many"}},
      {{"--train.steps=-1"}, 2, {"train.steps", "-1"}},
      {{"--train.batch=0"}, 2, {"train.batch"}},
      {{"--train.batch=8", "--train.micro_batch=3"},
       2,
       {"train.batch", "8", "train.micro_batch", "3", "6", "9"}},
      {{"--model.heads=3"}, 2, {"model.channels", "32", "model.heads", "3"}},
      {{"--model.heads=8"}, 2, {"head size", "4"}},
      {{"--model.dropout=1.5"}, 2, {"model.dropout", "1.5"}},
      {{"--model.preset=gpt5"}, 2, {"gpt5", "gpt2-124m"}},
      {{"--model.norm=rmsnorm"}, 2, {"rmsnorm", "not built yet"}},
      {{"--train.precision=fp16"}, 2, {"train.precision", "fp16", "bf16"}},
      {{"--train.precision=fp64"}, 2, {"fp64", "reference"}},
      {{"--device.kind=tpu"}, 2, {"tpu"}},
      {{"--parallel.tensor=3"}, 2, {"parallel.tensor", "3", "4"}},
      {{"--parallel.tensor=2"}, 2, {"1 process", "parallel.tensor 2"}},
      {{"--parallel.pipeline=3"}, 2, {"parallel.pipeline", "3", "model.layers", "2"}},
      {{"--parallel.virtual=2"}, 2, {"interleaved"}},
      {{"--parallel.data=2"}, 2, {"1 process", "hearth launch -n 2"}},
      {{"--data.train=" + (data / "missing.txt").string()}, 65, {"missing.txt"}},
      {{"--data.train=" + (data / "*.none").string()}, 65, {"*.none"}},
      {{"--data.train=" + (data / "empty.txt").string()}, 65, {"empty.txt", "empty"}},
      {{"--data.train=" + (data / "short.txt").string()}, 65, {"33"}},
      {{"--data.train=" + (data / "odd.bin").string(), "--data.tokenizer=auto", "--model.vocab=256"},
       65,
       {"odd.bin"}},
      {{"--data.train=" + (data / "tokens.bin").string(), "--data.tokenizer=auto", "--model.vocab=256"},
       65,
       {"300", "700", "tokens.bin", "256"}},
      {{"--data.tokenizer=klingon"}, 65, {"klingon"}},
      {{"--run.dir=/proc/nowhere/run"}, 2, {"/proc/nowhere/run"}},
      {{"--run.dir=configs/tiny.toml/run"}, 2, {"configs/tiny.toml"}},
      {{"--checkpoint.resume=" + (data / "nothing").string()}, 2, {"nothing"}},
      {{"--checkpoint.resume=" + data.string()}, 65, {"data"}},
  };
  for (const BadOption& c : cases) {
    const fs::path run = dir / "run";
    const Outcome outcome = train_run(run, c.options);
    const std::string what = c.options.back();
    // Where the data is at fault a tokenizer name may be a path, so both codes are right for it.
    expect_refused(outcome, what == "--data.tokenizer=klingon" && outcome.code == 2 ? 2 : c.code, c.says,
                   what);
    EXPECT_FALSE(fs::exists(run)) << what << " left a run directory";
  }
}

TEST(BadInput, ConfigFiles) {
  TempDir dir;
  const auto train = [&](const std::string& toml) {
    write(dir / "c.toml", toml);
    return run_program(hearth({"train", (dir / "c.toml").string(), "--run.dir=" + (dir / "run").string()}));
  };
  expect_refused(train("[train\nsteps = 3\n"), 2, {"c.toml:1"}, "syntax");
  expect_refused(train("[train]\nsteps = 3\nstep = 4\n"), 2, {"c.toml:3", "train.step"}, "unknown key");
  expect_refused(train("[train]\nsteps = \"3\"\n"), 2, {"c.toml:2", "train.steps"}, "wrong type");
  expect_refused(train("[training]\nsteps = 3\n"), 2, {"c.toml", "training"}, "unknown section");
  expect_refused(train("[model]\nlayers = 2.5\n"), 2, {"c.toml:2", "model.layers"}, "not whole");
  expect_refused(train(""), 2, {"data.train"}, "empty file");
  expect_refused(run_program(hearth({"train", "no-such.toml"})), 2, {"no-such.toml"}, "missing file");
  expect_refused(run_program(hearth({"train"})), 2, {"CONFIG"}, "no file");
  EXPECT_FALSE(fs::exists(dir / "run"));
}

TEST(BadInput, RunDirectoriesInUse) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "run").code, 0);
  const std::string before = read_file(dir / "run" / "metrics.jsonl");
  expect_refused(train_run(dir / "run", {"--checkpoint.resume=none"}), 2, {"already holds a run"},
                 "used directory");
  expect_refused(train_run(dir / "run", {"--model.channels=64"}), 2, {"model.channels", "32", "64"},
                 "other model");
  TempDir data;
  write(data / "other.txt", read_file("data/tiny.txt").substr(1000));
  const std::string other = "--data.train=" + (data / "other.txt").string();
  expect_refused(train_run(dir / "run", {other, "--train.steps=14"}), 65, {"other data"}, "other data");
  EXPECT_EQ(read_file(dir / "run" / "metrics.jsonl"), before);
  const Outcome allowed =
      train_run(dir / "run", {other, "--train.steps=14", "--checkpoint.allow_data_change=true"});
  EXPECT_EQ(allowed.code, 0) << allowed.output;

  const std::string older = "--checkpoint.resume=" + testing::checkpoint_of(dir / "run", 12).string();
  expect_refused(train_run(dir / "run", {older}), 2, {"step-00000012", "step-00000014"},
                 "an older checkpoint");

  testing::Process first(testing::train_command(dir / "busy", {"--train.steps=100000"}));
  ASSERT_TRUE(first.wait_for("step 1/"));
  expect_refused(train_run(dir / "busy"), 2, {std::to_string(first.pid())}, "second trainer");
  first.send(SIGKILL);
  first.finish();
  EXPECT_EQ(train_run(dir / "busy").code, 0) << "the lock of a dead process is taken over";
}

TEST(BadInput, DivergenceStopsWith70AndKeepsTheLastGoodCheckpoint) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "run", {"--train.steps=4"}).code, 0);
  // Each update multiplies the weights by 1 - lr * weight_decay = -999.
  const Words diverging = {
      "--train.steps=60",     "--optimizer.lr=1000",           "--optimizer.weight_decay=1",
      "--optimizer.warmup=0", "--optimizer.schedule=constant", "--train.max_skipped=3"};
  Words rare = diverging;
  rare.push_back("--checkpoint.every=1000");
  const Outcome outcome = train_run(dir / "run", rare);
  EXPECT_EQ(outcome.code, 70) << outcome.output;
  EXPECT_NE(outcome.output.find("not finite"), std::string::npos) << outcome.output;
  const std::string metrics = read_file(dir / "run" / "metrics.jsonl");
  EXPECT_NE(metrics.find("\"finite\":false"), std::string::npos);
  EXPECT_TRUE(metrics.find("\"loss\":null") != std::string::npos ||
              metrics.find("\"grad_norm\":null") != std::string::npos);
  const Outcome resumed = train_run(dir / "run", {"--train.steps=6"});
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(testing::metrics(dir / "run", "step").size(), 6u);
}

// Files may grow to 100 KiB only: checkpoints fail, the training goes on, and nothing half-written stays.
TEST(BadInput, AFullDiskCostsCheckpointsNotTheRun) {
  TempDir dir;
  std::string command = "trap '' XFSZ; ulimit -f 100; exec";
  for (const std::string& word : testing::train_command(dir / "run"))
    command += " '" + word + "'";
  const Outcome outcome = run_program({"bash", "-c", command});
  EXPECT_EQ(outcome.code, 65) << outcome.output;
  EXPECT_NE(outcome.output.find("training goes on"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("step 12/12"), std::string::npos) << outcome.output;
  for (const auto& entry : fs::directory_iterator(dir / "run" / "checkpoints"))
    ADD_FAILURE() << "left behind: " << entry.path();
}

TEST(BadInput, OtherCommands) {
  TempDir dir;
  ASSERT_EQ(train_run(dir / "run").code, 0);
  const std::string run = (dir / "run").string();
  expect_refused(run_program(hearth({"generate", (dir / "nothing").string(), "--prompt", "x"})), 65,
                 {"nothing"}, "no checkpoint");
  expect_refused(run_program(hearth({"generate", run, "--prompt", "x", "--tokens", "many"})), 2, {"tokens"},
                 "bad number");
  expect_refused(run_program(hearth({"frobnicate"})), 2, {"frobnicate"}, "unknown command");
  expect_refused(run_program(hearth({"tarin", "x"})), 2, {"train"}, "misspelt command");
  expect_refused(run_program(hearth({"inspect", "data/fetch_gpt2_tokenizer.sh"})), 65,
                 {"fetch_gpt2_tokenizer.sh"}, "foreign file");
  expect_refused(
      run_program(hearth({"prepare", "no-such.txt", "--tokenizer", "byte", "--out", (dir / "o").string()})),
      65, {"no-such.txt"}, "missing input");
  EXPECT_FALSE(fs::exists(dir / "o"));

  // A character-level model names a character that it does not know.
  const Outcome chars = train_run(dir / "char", {"--data.tokenizer=char"});
  ASSERT_EQ(chars.code, 0) << chars.output;
  expect_refused(run_program(hearth({"generate", (dir / "char").string(), "--prompt", "a\xe6\xbc\xa2"})), 2,
                 {"\xe6\xbc\xa2"}, "unknown character");
}

}  // namespace
}  // namespace hearth
