// Combinations of values: what is refused, in which words, and the edges that must be allowed.
#include "cli/config_check.h"

#include <gtest/gtest.h>

#include "cli/config_source.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

RunConfig config_of(const std::vector<std::string>& arguments) {
  std::vector<Assignment> assignments =
      read_toml("model.preset = 'tiny'\ndata.train = 'data/tiny.txt'", "test.toml");
  size_t at = 0;
  while (at < arguments.size())
    assignments.push_back(read_override(arguments, at));
  return apply(assignments).run;
}

void refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
  const RunConfig config = config_of(arguments);
  try {
    validate(config);
    ADD_FAILURE() << "accepted " << arguments[0];
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << "\nlacks " << part;
  }
}

void accepted(const std::vector<std::string>& arguments) {
  EXPECT_NO_THROW(validate(config_of(arguments))) << (arguments.empty() ? "" : arguments[0]);
}

TEST(ConfigCheck, MicroBatchMustDivideTheBatch) {
  refused({"--train.batch=10", "--train.micro_batch=4"}, {"10 = 2 x 4 + 2", "8 and 12", "2 and 5"});
  refused({"--train.batch=7", "--train.micro_batch=6"}, {"7 = 1 x 6 + 1", "6 and 12", "1 and 7"});
  refused({"--train.batch=4", "--train.micro_batch=8"}, {"larger than train.batch = 4"});
  accepted({"--train.batch=12", "--train.micro_batch=4"});
  accepted({"--train.batch=12", "--train.micro_batch=12"});
  accepted({"--train.batch=12", "--train.micro_batch=1"});
  accepted({"--train.batch=12", "--train.micro_batch=0"});
}

TEST(ConfigCheck, EdgesOfTheSchedule) {
  accepted({"--train.steps=0"});
  accepted({"--train.steps=1", "--optimizer.warmup=1"});
  accepted({"--train.steps=10", "--optimizer.warmup=10"});
  accepted({"--train.steps=10", "--optimizer.warmup=1000"});
  accepted({"--optimizer.lr=0"});
  accepted({"--optimizer.lr=0.001", "--optimizer.min_lr=0.001"});
  refused({"--optimizer.lr=0.001", "--optimizer.min_lr=0.01"},
          {"optimizer.min_lr = 0.01", "optimizer.lr = 0.001"});
  accepted({"--optimizer.lr=0.001", "--optimizer.min_lr=0.01", "--optimizer.schedule=constant"});
}

TEST(ConfigCheck, TheModelIsChecked) {
  refused({"--model.heads=3"}, {"model.channels = 64", "model.heads = 3"});
  refused({"--model.norm=rmsnorm"}, {"not built yet"});
  refused({"--model.channels=60", "--model.heads=4"}, {"15"});
}

// The number of ranks is known only when a run starts; what the model allows is known before.
TEST(ConfigCheck, LayoutsThatTheModelAllows) {
  accepted({"--parallel.data=1"});
  accepted({"--parallel.data=3", "--parallel.zero=1"});
  accepted({"--parallel.tensor=4", "--parallel.pipeline=4"});
  accepted({"--parallel.pipeline=2", "--parallel.schedule=interleaved", "--parallel.virtual=2"});
  refused({"--parallel.data=0"}, {"parallel.data = 0"});
  refused({"--parallel.tensor=3"}, {"parallel.tensor = 3", "4 key/value heads", "1, 2, 4"});
  refused({"--parallel.pipeline=5"}, {"parallel.pipeline = 5", "model.layers = 4"});
  refused({"--parallel.pipeline=3", "--parallel.schedule=interleaved", "--parallel.virtual=2"},
          {"6 parts", "4"});
  refused({"--parallel.virtual=2"}, {"parallel.virtual = 2", "interleaved"});
  refused({"--parallel.schedule=interleaved"}, {"interleaved", "at least 2"});
  accepted({"--parallel.tensor=2", "--parallel.sequence=true"});
  refused({"--parallel.sequence=true"}, {"parallel.sequence = true", "parallel.tensor = 1", "2 or more"});
  refused({"--parallel.tensor=4", "--parallel.sequence=true", "--model.context=30"},
          {"model.context = 30", "4 tensor-parallel ranks", "30 = 4 x 7 + 2", "28 and 32"});
  accepted({"--parallel.transport=nccl", "--device.kind=cuda"});
  accepted({"--parallel.transport=nccl"});
  for (const char* kind : {"cpu", "reference"})
    refused({"--parallel.transport=nccl", std::string("--device.kind=") + kind},
            {"parallel.transport = \"nccl\"", text("device.kind = \"", kind, "\""), "gloo"});
}

TEST(ConfigCheck, PrecisionFitsTheDevice) {
  accepted({"--train.precision=fp64", "--device.kind=reference"});
  refused({"--train.precision=fp64"}, {"fp64", "reference"});
  refused({"--train.precision=fp64", "--device.kind=cpu"}, {"fp64", "reference"});
}

TEST(ConfigCheck, Data) {
  refused({"--data.train="}, {"data.train is not given"});
  refused({"--data.tokenizer="}, {"data.tokenizer"});
  refused({"--data.val_fraction=0"}, {"data.val_fraction = 0", "validation"});
  accepted({"--data.val_fraction=0", "--data.val=x"});
}

TEST(ConfigCheck, RunNames) {
  accepted({"--run.name=a b"});
  refused({"--run.name=a/b"}, {"run.name = \"a/b\"", "run.dir"});
  refused({"--run.name=.."}, {"run.name"});
}

TEST(ConfigCheck, Resume) {
  const TempDir dir;
  accepted({"--checkpoint.resume=auto"});
  accepted({"--checkpoint.resume=none"});
  accepted({"--checkpoint.resume=" + dir.path().string()});
  refused({"--checkpoint.resume=atuo"}, {"checkpoint.resume = \"atuo\"", "did you mean auto?"});
  refused({"--checkpoint.resume=" + (dir / "gone").string()}, {"no such path"});
  refused({"--checkpoint.resume="}, {"expected auto, none"});
}

TEST(ConfigCheck, CountersDoNotOverflow) {
  refused({"--train.steps=1000000000", "--train.batch=16777216", "--model.context=16777216"},
          {"more than can be"});
}

}  // namespace
}  // namespace hearth
