// The folder of checkpoints: which are found, which are kept, which are deleted.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "support/checkpoint_fixture.h"
#include "train/checkpoint.h"

namespace hearth {
namespace {

std::vector<int64_t> steps_in(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const fs::path& path : list_checkpoints(folder))
    steps.push_back(std::stoll(path.filename().string().substr(5)));
  return steps;
}

void flip_a_bit(const fs::path& file, size_t bit) {
  std::string content = read_file(file);
  content[bit / 8] = static_cast<char>(content[bit / 8] ^ (1 << (bit % 8)));
  overwrite(file, content);
}

TEST(CheckpointFolder, ListsNewestFirstAndNothingElse) {
  const FastTempDir dir;
  for (const char* name : {"step-00000002", "step-00000010", "step-123456789", "step-00000011.tmp.7",
                           "step-2", "step-0000000x", "step--0000003", "other", "step-000000004"})
    fs::create_directory(dir / name);
  overwrite(dir / "step-00000020", "a file");
  EXPECT_EQ(steps_in(dir.path()), (std::vector<int64_t>{123456789, 10, 2}));
  EXPECT_TRUE(list_checkpoints(dir / "absent").empty());
}

TEST(CheckpointFolder, FallsBackToTheNewestWholeOneAndSaysWhy) {
  const FastTempDir dir;
  for (const int64_t step : {1, 2, 3, 4})
    save_step(dir / "c", step);
  fs::remove(dir / "c/step-00000004/manifest.json");
  flip_a_bit(dir / "c/step-00000003/optimizer-00000.safetensors", 4001);
  std::vector<std::string> reports;
  const auto reader = open_newest_checkpoint(dir / "c", [&](const std::string& s) { reports.push_back(s); });
  ASSERT_TRUE(reader);
  EXPECT_TRUE(holds_step(*reader, 2));
  ASSERT_EQ(reports.size(), 2u);
  expect_contains(reports[0], "checkpoint step-00000004 cannot be used");
  expect_contains(reports[0], "has no manifest.json");
  expect_contains(reports[1], "optimizer-00000.safetensors is damaged");
  EXPECT_FALSE(open_newest_checkpoint(dir / "absent", [](const std::string&) { FAIL(); }));
}

TEST(CheckpointFolder, WhatAUserMayName) {
  const FastTempDir dir;
  for (const int64_t step : {1, 2})
    save_step(dir / "run/checkpoints", step);
  EXPECT_TRUE(holds_step(open_checkpoint(dir / "run"), 2));
  EXPECT_TRUE(holds_step(open_checkpoint(dir / "run/checkpoints"), 2));
  EXPECT_TRUE(holds_step(open_checkpoint(dir / "run/checkpoints/step-00000001"), 1));
  fs::copy(dir / "run/checkpoints/step-00000001", dir / "renamed", fs::copy_options::recursive);
  EXPECT_TRUE(holds_step(open_checkpoint(dir / "renamed"), 1));

  expect_contains(data_error([&] { open_checkpoint(dir / "absent"); }), "there is no checkpoint");
  expect_contains(data_error([&] { open_checkpoint(dir / "run/checkpoints/latest"); }), "is a file");
  fs::create_directory(dir / "empty");
  expect_contains(data_error([&] { open_checkpoint(dir / "empty"); }), "it is empty");
  overwrite(dir / "empty/ckpt.pt", "x");
  expect_contains(data_error([&] { open_checkpoint(dir / "empty"); }), "it holds \"ckpt.pt\"");

  flip_a_bit(dir / "run/checkpoints/step-00000002/model-00000.safetensors", 900);
  const std::string sentence = data_error([&] { open_checkpoint(dir / "run"); });
  expect_contains(sentence, "step-00000002/model-00000.safetensors is damaged");
  expect_contains(sentence,
                  "the newest whole checkpoint is " + (dir / "run/checkpoints/step-00000001").string());
  fs::remove(dir / "run/checkpoints/step-00000001/manifest.json");
  expect_contains(data_error([&] { open_checkpoint(dir / "run"); }), "there is no whole checkpoint in");
}

TEST(Prune, KeepsTheNewestAndTheBest) {
  const FastTempDir dir;
  const double losses[] = {3.0, 1.0, 2.0, 2.5, 2.6, std::nan("")};
  for (int64_t step = 1; step <= 6; ++step)
    save_step(dir / "c", step, losses[step - 1]);
  prune_checkpoints(dir / "c", 2);
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<int64_t>{6, 5, 2}));
  save_step(dir / "c", 7, 0.5);
  prune_checkpoints(dir / "c", 2);
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<int64_t>{7, 6}));
  prune_checkpoints(dir / "c", 0);
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<int64_t>{7}));
  EXPECT_EQ(sorted_names(dir / "c"), (std::vector<std::string>{"latest", "step-00000007"}));
  prune_checkpoints(dir / "absent", 1);
}

// The run went back because the newest checkpoint rotted in a way that sizes do not show: that one must not
// be counted as the newest, or the only good one is deleted.
TEST(Prune, CountsFromTheOneJustWritten) {
  const FastTempDir dir;
  for (const int64_t step : {10, 20})
    save_step(dir / "c", step);
  flip_a_bit(dir / "c/step-00000020/model-00000.safetensors", 900);
  save_step(dir / "c", 15);
  prune_checkpoints(dir / "c", 1);
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<int64_t>{20, 15}));
  EXPECT_TRUE(holds_step(*open_newest_checkpoint(dir / "c", [](const std::string&) {}), 15));
}

// Damages a checkpoint in a way that its manifest or its sizes show.
void damage(const fs::path& checkpoint, unsigned how) {
  const fs::path model = checkpoint / "model-00000.safetensors";
  switch (how % 5) {
    case 0:
      fs::remove(checkpoint / "manifest.json");
      break;
    case 1:
      fs::resize_file(model, fs::file_size(model) - 1);
      break;
    case 2:
      fs::remove(checkpoint / "optimizer-00000.safetensors");
      break;
    case 3:
      overwrite(checkpoint / "tokenizer.json", "");
      break;
    default:
      flip_a_bit(checkpoint / "manifest.json", 8 * 40);
  }
}

TEST(Prune, NeverLeavesZeroWholeOnes) {
  const FastTempDir dir;
  const int64_t most = 5;
  const std::vector<std::optional<double>> losses = {std::nullopt, 2.0, 1.0};
  for (size_t i = 0; i < losses.size(); ++i)
    for (int64_t step = 1; step <= most; ++step)
      save_step(dir / text("pool", i), step, losses[i]);
  const auto ignore = [](const std::string&) {};
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const fs::path folder = dir / text("c", seed);
    fs::create_directory(folder);
    for (int64_t step = 1; step <= most; ++step) {
      const std::string name = text("step-0000000", step);
      if (random() % 4 == 0) continue;
      copy_folder(dir / text("pool", random() % losses.size()) / name, folder / name);
      overwrite(folder / "latest", name + "\n");
    }
    for (const fs::path& checkpoint : list_checkpoints(folder))
      if (random() % 2) damage(checkpoint, static_cast<unsigned>(random()));
    if (random() % 4 == 0) overwrite(folder / "latest", random() % 2 ? "step-00000001\n" : "junk");
    const auto before = open_newest_checkpoint(folder, ignore);
    prune_checkpoints(folder, static_cast<int64_t>(random() % 3));
    const auto after = open_newest_checkpoint(folder, ignore);
    ASSERT_EQ(before.has_value(), after.has_value()) << "seed " << seed;
    if (!before) continue;
    ASSERT_EQ(before->state().step, after->state().step) << "seed " << seed;
  }
}

TEST(RemoveLeftovers, OfDeadProcessesAndOfThisOne) {
  const FastTempDir dir;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  const std::vector<std::string> gone = {text("step-00000001.tmp.", dead),
                                         text("step-00000001.pruned.tmp.", dead),
                                         text("step-00000002.tmp.", ::getpid())};
  const std::vector<std::string> stay = {"mine.tmp.999999999", "step-00000001",
                                         text("step-00000003.tmp.", ::getppid()), "step-00000004.tmp.x"};
  for (const auto& names : {gone, stay})
    for (const std::string& name : names) {
      fs::create_directory(dir / name);
      overwrite(dir / name / "file", "x");
    }
  overwrite(dir / "latest.tmp", "half");
  remove_leftovers(dir.path());
  std::vector<std::string> expected = stay;
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(sorted_names(dir.path()), expected);
  remove_leftovers(dir / "absent");
}

}  // namespace
}  // namespace hearth
