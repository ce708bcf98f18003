// The executable as several ranks: every layout trains the same model, and any layout continues any other.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/curves.h"
#include "support/launch_run.h"

namespace hearth {
namespace {

using testing::checkpoint_files;
using testing::expect_same_curve;
using testing::layout_run;
using testing::metrics;
using testing::Outcome;
using testing::RankLayout;
using testing::Words;

class Layouts : public ::testing::TestWithParam<RankLayout> {};

TEST_P(Layouts, LogTheSameLossesAndNorms) {
  TempDir dir;
  const Outcome alone = layout_run(testing::one(), dir / "one");
  ASSERT_EQ(alone.code, 0) << alone.output;
  ASSERT_EQ(metrics(dir / "one", "step").size(), 7u);
  ASSERT_EQ(metrics(dir / "one", "eval").size(), 3u);
  const Outcome spread = layout_run(GetParam(), dir / "spread");
  ASSERT_EQ(spread.code, 0) << spread.output;
  EXPECT_EQ(metrics(dir / "spread", "start").at(0).at("world"), GetParam().ranks);
  expect_same_curve(dir / "spread", dir / "one", 1e-5, GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(All, Layouts,
                         ::testing::Values(testing::data2(), testing::data3(), testing::tensor2(),
                                           testing::pipeline2(), testing::gpipe3(),
                                           testing::tensor2_pipeline2(), testing::data2_zero(),
                                           testing::interleaved(), testing::pipeline2_data2_zero(),
                                           testing::tensor2_sequence(),
                                           testing::tensor2_pipeline2_sequence()),
                         [](const auto& info) { return info.param.name; });

// bf16 rounds partial sums, so that layouts differ by roundings, not by more.
TEST(LayoutsInBf16, DifferByRoundingsOnly) {
  TempDir dir;
  const Words bf16 = {"--train.precision=bf16"};
  ASSERT_EQ(layout_run(testing::one(), dir / "one", bf16).code, 0);
  const Outcome spread = layout_run(testing::tensor2_pipeline2(), dir / "spread", bf16);
  ASSERT_EQ(spread.code, 0) << spread.output;
  expect_same_curve(dir / "spread", dir / "one", 1e-2, "bf16");
}

// The sample that a run logged behind its last step: many lines, perhaps.
std::string sample_of(const fs::path& run) {
  const std::string log = read_file(run / "log.txt");
  const size_t begin = log.find("  sample: ");
  const size_t end = log.find("step 7  saved");
  return begin < end && end != std::string::npos ? log.substr(begin, end - begin) : "";
}

TEST(LayoutSamples, AreTheSameText) {
  TempDir dir;
  const Words options = {"--sample.every=7", "--sample.tokens=120", "--sample.prompt=The "};
  ASSERT_EQ(layout_run(testing::one(), dir / "one", options).code, 0);
  const std::string want = sample_of(dir / "one");
  ASSERT_GT(want.size(), 60u) << want;
  for (const RankLayout& layout :
       {testing::data2(), testing::tensor2(), testing::pipeline2(), testing::interleaved(),
        testing::tensor2_pipeline2(), testing::tensor2_sequence(), testing::tensor2_pipeline2_sequence(),
        testing::tensor2_data2_zero()}) {
    const Outcome spread = layout_run(layout, dir / layout.name, options);
    ASSERT_EQ(spread.code, 0) << spread.output;
    EXPECT_EQ(sample_of(dir / layout.name), want) << layout.name;
  }
}

// The tensors of a safetensors file, all f32.
std::map<std::string, std::vector<float>> tensors_of(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const nlohmann::json header = nlohmann::json::parse(file.substr(8, length));
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    std::vector<float>& values = tensors[name];
    values.resize((end - begin) / sizeof(float));
    std::memcpy(values.data(), file.data() + 8 + length + begin, end - begin);
  }
  return tensors;
}

void expect_near_tensors(const std::string& got, const std::string& want, double tolerance) {
  const auto a = tensors_of(got), b = tensors_of(want);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : b) {
    if (name.ends_with("attn.k.bias")) continue;  // softmax ignores it: its gradient is nothing but rounding
    ASSERT_EQ(a.at(name).size(), values.size()) << name;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(static_cast<double>(a.at(name)[i]) - values[i], 2);
      norm += std::pow(static_cast<double>(values[i]), 2);
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << name;
  }
}

// Whole tensors of the model, whoever had which rows and columns.
TEST(LayoutGradients, AreDumpedWhole) {
  TempDir dir;
  const auto dump = [&](const RankLayout& layout) {
    const fs::path folder = dir / (std::string(layout.name) + "-gradients");
    const Outcome outcome = layout_run(layout, dir / layout.name,
                                       {"--train.stop_after=2", "--debug.dump_gradients=" + folder.string()});
    EXPECT_EQ(outcome.code, 75) << outcome.output;
    return read_file(folder / "step-00000002.safetensors");
  };
  const std::string one = dump(testing::one());
  for (const RankLayout& layout :
       {testing::tensor2_pipeline2_sequence(), testing::data3_zero(), testing::tensor2_data2()})
    expect_near_tensors(dump(layout), one, 1e-4);
}

// One run whose every step is of another layout is the run of one process: 14 pairs of save and resume.
TEST(Resharding, EachLayoutContinuesAnother) {
  TempDir dir;
  const RankLayout chain[] = {testing::one(),
                              testing::data2(),
                              testing::tensor2(),
                              testing::pipeline2(),
                              testing::data2_zero(),
                              testing::tensor2_pipeline2_sequence(),
                              testing::data3(),
                              testing::interleaved(),
                              testing::tensor2_data2_zero(),
                              testing::gpipe3(),
                              testing::data3_zero(),
                              testing::one(),
                              testing::tensor2_data2(),
                              testing::pipeline2_data2_zero(),
                              testing::one()};
  const std::string steps = "--train.steps=" + std::to_string(std::size(chain));
  const int last = std::size(chain);
  ASSERT_EQ(layout_run(testing::one(), dir / "whole", {steps}).code, 0);
  for (const RankLayout& layout : chain) {
    const bool end = &layout == std::end(chain) - 1;
    const Outcome outcome = layout_run(layout, dir / "chain", {steps, "--train.stop_after=1"});
    ASSERT_EQ(outcome.code, end ? 0 : 75) << layout.name << ": " << outcome.output;
  }
  expect_same_curve(dir / "chain", dir / "whole", 1e-5, "chain");
  const auto got = checkpoint_files(dir / "chain", last), want = checkpoint_files(dir / "whole", last);
  ASSERT_EQ(want.size(), 2u);
  for (const auto& [name, content] : want)
    expect_near_tensors(got.at(name), content, 1e-3);
}

class SameLayout : public ::testing::TestWithParam<RankLayout> {};

TEST_P(SameLayout, ResumesBitwise) {
  TempDir dir;
  ASSERT_EQ(layout_run(GetParam(), dir / "whole").code, 0);
  const Outcome stopped = layout_run(GetParam(), dir / "stopped", {"--train.stop_after=3"});
  ASSERT_EQ(stopped.code, 75) << stopped.output;
  EXPECT_NE(stopped.output.find("hearth launch -n 4 train"), std::string::npos) << stopped.output;
  const Outcome resumed = layout_run(GetParam(), dir / "stopped");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  const auto got = checkpoint_files(dir / "stopped", 7), want = checkpoint_files(dir / "whole", 7);
  ASSERT_GE(want.size(), 4u) << "model and optimizer of each shard";
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, content] : want)
    EXPECT_TRUE(got.at(name) == content) << name << " differs";
  EXPECT_EQ(metrics(dir / "stopped", "step"), metrics(dir / "whole", "step"));
  EXPECT_EQ(metrics(dir / "stopped", "eval"), metrics(dir / "whole", "eval"));
}

INSTANTIATE_TEST_SUITE_P(Some, SameLayout,
                         ::testing::Values(testing::tensor2_data2(), testing::pipeline2_data2_zero()),
                         [](const auto& info) { return info.param.name; });

TEST(Resharding, ADamagedShardCostsOneCheckpoint) {
  TempDir dir;
  const fs::path run = dir / "run";
  ASSERT_EQ(layout_run(testing::tensor2_pipeline2(), run).code, 0);
  const auto good = checkpoint_files(run, 7);
  const fs::path shard = testing::checkpoint_of(run, 7) / "optimizer-00002.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() / 2] ^= 1;
  write_file_atomically(shard, bytes);
  const Outcome resumed = layout_run(testing::tensor2_pipeline2(), run);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("optimizer-00002.safetensors"), std::string::npos) << resumed.output;
  EXPECT_NE(resumed.output.find("step-00000004, after step 4"), std::string::npos) << resumed.output;
  EXPECT_TRUE(checkpoint_files(run, 7) == good);
  EXPECT_EQ(metrics(run, "step").size(), 7u);
}

}  // namespace
}  // namespace hearth
