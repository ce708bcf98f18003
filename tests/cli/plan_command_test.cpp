// `hearth plan` and `hearth check`: the executable, its words and its exit codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/train_run.h"
#include "train/layout_check.h"

namespace hearth {
namespace {

using testing::hearth;
using testing::Outcome;
using testing::run_program;

std::string line_with(const std::string& output, const std::string& word) {
  const size_t at = output.find("\n" + word);
  if (at == std::string::npos) return "";
  return output.substr(at + 1, output.find('\n', at + 1) - at - 1);
}

// The start-up report of the trainer has the planned memory, to the letter.
TEST(PlanCommand, SaysWhatTheTrainerSays) {
  TempDir dir;
  const Outcome planned = run_program(hearth({"plan", "configs/tiny.toml"}));
  ASSERT_EQ(planned.code, 0) << planned.output;
  const Outcome trained = run_program(
      hearth({"train", "configs/tiny.toml", "--train.steps=1", "--run.dir=" + (dir / "run").string()}));
  ASSERT_EQ(trained.code, 0) << trained.output;
  for (const char* line : {"memory ", "precision "}) {
    EXPECT_NE(line_with(planned.output, line), "") << planned.output;
    EXPECT_EQ(line_with(planned.output, line), line_with(trained.output, line));
  }
  EXPECT_NE(planned.output.find(" epochs"), std::string::npos) << planned.output;
}

// A login node without a GPU says that its plan is for a CPU, and how to plan for the GPUs.
TEST(PlanCommand, SaysWhichDeviceItIsFor) {
  const auto plan = [](const std::vector<std::string>& more) {
    std::vector<std::string> words{"plan", "configs/gpt2-124m.toml", "--data.train=absent.bin"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(hearth(words)).output;
  };
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // also where there is a GPU
  const std::string automatic = plan({}), cpu = plan({"--device.kind=cpu"}),
                    cuda = plan({"--device.kind=cuda"});
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(
      line_with(automatic, "device "),
      "device     cpu, because device.kind = \"auto\" finds no GPU here; --device.kind=cuda plans for GPUs");
  EXPECT_EQ(line_with(cpu, "device "), "device     cpu");
  EXPECT_EQ(line_with(cuda, "device ").find("device     cuda; "), 0u) << cuda;
  EXPECT_EQ(line_with(automatic, "memory "), line_with(cpu, "memory "));
  EXPECT_NE(line_with(automatic, "memory "), line_with(cuda, "memory "));
}

TEST(PlanCommand, NeedsNoData) {
  const Outcome outcome = run_program(hearth(
      {"plan", "configs/gpt3-6.7b.toml", "--ranks", "64", "--data.train=absent.bin", "--peak-tflops=100"}));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (const char* part : {"tensor 8 (sequence parallel) x data 2 x pipeline 4",
                           "without the data: ", "stage 3 |", "100 TFLOP/s", "rank = t + 8 x (d + 2 x p)"})
    EXPECT_NE(outcome.output.find(part), std::string::npos) << part << outcome.output;
  const Outcome vocab = run_program(hearth({"plan", "configs/tiny.toml", "--data.train=absent.bin"}));
  EXPECT_EQ(vocab.code, 2);
  EXPECT_NE(vocab.output.find("--model.vocab=50257"), std::string::npos) << vocab.output;
}

// For the ranks that its first lines speak of.
TEST(PlanCommand, PlansEveryConfig) {
  std::map<std::string, int> ranks{{"gpt2-124m-2gpu", 2},
                                   {"gpt2-1558m-8gpu", 8},
                                   {"gpt3-6.7b", 64},
                                   {"gpt3-13b", 64},
                                   {"gpt2-124m", 1},
                                   {"reference", 1},
                                   {"shakespeare-char", 1},
                                   {"shakespeare-char-cpu", 1},
                                   {"tiny", 1}};
  size_t planned = 0;
  for (const auto& entry : fs::directory_iterator("configs")) {
    const std::string name = entry.path().stem().string();
    ASSERT_TRUE(ranks.contains(name)) << name << ": for how many ranks is it?";
    std::vector<std::string> words{"plan", entry.path().string(), "--ranks", std::to_string(ranks[name]),
                                   "--data.train=absent.bin"};
    // What has no vocabulary takes it from the data.
    Outcome outcome = run_program(hearth(words));
    if (outcome.output.find("--model.vocab=") != std::string::npos) {
      words.push_back("--model.vocab=256");
      outcome = run_program(hearth(words));
    }
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_NE(line_with(outcome.output, "memory "), "") << name << outcome.output;
    EXPECT_NE(line_with(outcome.output, "run "), "") << name << outcome.output;
    ++planned;
  }
  EXPECT_EQ(planned, ranks.size());
}

TEST(PlanCommand, RefusesWhatCannotBe) {
  const struct {
    std::vector<std::string> more;
    const char* part;
  } cases[] = {
      {{"--parallel.tensor=3"}, "possible: 1, 2, 4"},   {{"--parallel.pipeline=5"}, "at most pipeline = 4"},
      {{"--parallel.tensor=2", "--ranks=5"}, "4 or 6"}, {{"--parallel.data=3"}, "6 and 12"},
      {{"--ranks=none"}, "a whole number from 1"},      {{"--ranx=2"}, "--ranks"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> words{"plan", "configs/tiny.toml"};
    words.insert(words.end(), c.more.begin(), c.more.end());
    const Outcome outcome = run_program(hearth(words));
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(c.part), std::string::npos) << outcome.output;
  }
}

TEST(CheckCommand, TwoRanksAgree) {
  const Outcome outcome = run_program(hearth({"check", "layouts", "-n", "2"}));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("6 layouts agree with one process"), std::string::npos) << outcome.output;
  EXPECT_EQ(run_program(hearth({"check", "layout"})).code, 2);
}

// What the command prints is what the comparison finds.
TEST(CheckCommand, SeesALayoutThatDiffers) {
  class Forgetful final : public Communicator {  // of one rank: every sum is its own contribution
   public:
    int rank() const override { return inner_->rank(); }
    int size() const override { return inner_->size(); }
    explicit Forgetful(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
    Request all_reduce(const Tensor&, Reduce) override { return {}; }
    Request reduce_scatter(const Tensor& in, const Tensor& out) override {
      return inner_->reduce_scatter(in, out);
    }
    Request all_gather(const Tensor& in, const Tensor& out) override { return inner_->all_gather(in, out); }
    Request broadcast(const Tensor& t, int root) override { return inner_->broadcast(t, root); }
    Request exchange(std::span<const Transfer> transfers) override { return inner_->exchange(transfers); }
    void barrier() override { inner_->barrier(); }

   private:
    std::unique_ptr<Communicator> inner_;
  };
  int differing = 0;
  const Difference worst = check_layouts(
      {{.data = 2}, {.pipeline = 2}},
      [&](const Layout&, const Difference& d) { differing += d.error > layout_tolerance; },
      {.decorate = [](Axis axis, std::unique_ptr<Communicator> c) -> std::unique_ptr<Communicator> {
        if (axis != Axis::data) return c;
        return std::make_unique<Forgetful>(std::move(c));
      }});
  EXPECT_EQ(differing, 1);
  EXPECT_GT(worst.error, 1e-3);
}

// A rank that fails does not leave the others waiting.
TEST(CheckCommand, ARankThatThrowsEndsAll) {
  try {
    run_as_threads(1, 2, 2, [](const ProcessGroups& groups) {
      if (groups.grid.rank() == 3) fail_data("rank 3 has had enough");
      groups.data->barrier();
      groups.pipeline->barrier();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 3 has had enough");
  }
}

TEST(CheckCommand, LayoutsWithinEight) {
  const std::vector<Layout> layouts = layouts_within(8);
  EXPECT_EQ(layouts[0].ranks(), 1);
  for (const Layout& l : layouts)
    EXPECT_LE(l.ranks(), 8);
  const auto has = [&](int t, int d, int p, int zero, bool sequence = false) {
    return std::count_if(layouts.begin(), layouts.end(), [&](const Layout& l) {
      return l.tensor == t && l.data == d && l.pipeline == p && l.zero == zero && l.sequence == sequence;
    });
  };
  EXPECT_EQ(has(2, 2, 2, 1), 1);
  EXPECT_EQ(has(8, 1, 1, 0), 1);
  EXPECT_EQ(has(1, 8, 1, 1), 1);
  EXPECT_EQ(has(1, 1, 8, 0), 1);
  EXPECT_EQ(has(1, 1, 8, 1), 0);
  EXPECT_EQ(has(2, 2, 2, 1, true), 1);
  EXPECT_EQ(has(1, 2, 2, 1, true), 0);
}

}  // namespace
}  // namespace hearth
