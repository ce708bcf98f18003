// A model that is split over ranks predicts, and samples, what one process with the same weights does.
#include "parallel/split_decoder.h"

#include <gtest/gtest.h>

#include <mutex>

#include "model/decoder.h"
#include "parallel/layout_trace.h"
#include "support/model_harness.h"
#include "train/run_sampler.h"

namespace hearth {
namespace {

using Logits = std::vector<std::vector<float>>;

const std::vector<int32_t> text_ids = {5, 96, 0, 17, 44, 44, 1, 80, 31, 2, 9, 63, 7, 12, 90, 3};

// Behind prompts of 1 and of 6 tokens, and each token after them up to a full context.
Logits logits_of(Predictor& predictor) {
  Logits all;
  for (const size_t prompt : {size_t{1}, size_t{6}}) {
    predictor.prefill(std::span(text_ids).first(prompt));
    for (size_t n = prompt;; ++n) {
      EXPECT_EQ(predictor.length(), static_cast<int64_t>(n));
      predictor.logits(all.emplace_back());
      if (n == text_ids.size()) break;
      predictor.step(text_ids[n]);
    }
  }
  return all;
}

// One training step, on samples that every layout splits alike.
void train(StepRunner& runner, const Layout& layout, int step) {
  HostBatch batch;
  batch.rows = layout.rows;
  for (int64_t r = 0; r < layout.rows; ++r) {
    batch.tokens.insert(batch.tokens.end(), text_ids.begin(), text_ids.end());
    batch.targets.insert(batch.targets.end(), text_ids.rbegin(), text_ids.rend());
  }
  const auto count = static_cast<size_t>(layout.batch / (layout.data * layout.rows));
  runner.run({step * layout.batch, 3e-2, step + 1}, std::vector<HostBatch>(count, batch));
}

// After a step of training; the model has no dropout, so that all samples of the step are alike.
RunConfig run_config(const Layout& layout) {
  RunConfig config = config_of(layout);
  config.model.dropout = 0;
  return config;
}

Logits of_one_process(bool tied) {
  const Layout layout{.tied = tied};
  const auto device = make_reference_device();
  const ProcessGroups groups;
  const RunConfig config = run_config(layout);
  StepRunner runner(config, *device, groups);
  runner.initialize();
  train(runner, layout, 0);
  Decoder decoder(config.model, Precision::fp64, *device, runner.parameters());
  return logits_of(decoder);
}

std::vector<Layout> split_layouts() {
  return {{.tensor = 2},
          {.tensor = 8, .tied = false},
          {.tensor = 2, .sequence = true, .rows = 3},
          {.pipeline = 2},
          {.pipeline = 5, .schedule = "gpipe", .tied = false},
          {.pipeline = 2, .schedule = "interleaved", .chunks = 2},
          {.tensor = 2, .data = 2, .pipeline = 2, .zero = 1, .recompute = Recompute::block},
          {.tensor = 4, .pipeline = 2, .recompute = Recompute::selective, .sequence = true}};
}

TEST(SplitDecoder, PredictsLikeOneProcess) {
  const std::map<bool, Logits> expected{{false, of_one_process(false)}, {true, of_one_process(true)}};
  for (const Layout& layout : split_layouts()) {
    const RunConfig config = run_config(layout);
    std::mutex mutex;
    std::vector<Logits> all;
    run_as_threads(layout.tensor, layout.data, layout.pipeline, [&](const ProcessGroups& groups) {
      const auto device = make_reference_device();
      StepRunner runner(config, *device, groups);
      runner.initialize();
      train(runner, layout, 0);
      SplitDecoder decoder(config.model, Precision::fp64, *device, runner.pipeline(), groups);
      const Logits mine = logits_of(decoder);
      const std::lock_guard lock(mutex);
      all.push_back(mine);
    });
    ASSERT_EQ(all.size(), static_cast<size_t>(layout.ranks()));
    for (const Logits& logits : all)
      EXPECT_EQ(logits, all.front()) << testing::name_of(layout) << ": not the same on all ranks";
    const Logits& want = expected.at(layout.tied);
    ASSERT_EQ(all.front().size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(all.front()[i].size(), 97u);
      const testing::Values a(all.front()[i].begin(), all.front()[i].end());
      EXPECT_LT(testing::relative_error(a, {want[i].begin(), want[i].end()}), 1e-6)
          << testing::name_of(layout) << ", text " << i;
    }
  }
}

// The ranks draw one text, also where rounding, or a fault that has not been found yet, tells copies apart.
TEST(SplitDecoder, AllRanksFollowTheFirstReplica) {
  const Layout layout{.tensor = 2, .data = 2, .pipeline = 2};
  const RunConfig config = run_config(layout);
  std::mutex mutex;
  std::map<bool, std::vector<Logits>> all;  // by whether a copy was spoiled
  for (const bool spoiled : {false, true})
    run_as_threads(2, 2, 2, [&](const ProcessGroups& groups) {
      const auto device = make_reference_device();
      StepRunner runner(config, *device, groups);
      runner.initialize();
      if (spoiled && groups.data->rank() == 1)
        for (const Parameter& p : runner.parameters().all())
          device->ops().fill_zero(p.weight);
      SplitDecoder decoder(config.model, Precision::fp64, *device, runner.pipeline(), groups);
      const Logits mine = logits_of(decoder);
      const std::lock_guard lock(mutex);
      all[spoiled].push_back(mine);
    });
  for (const auto& [spoiled, ranks] : all)
    for (const Logits& logits : ranks)
      EXPECT_TRUE(logits == all[false].front()) << spoiled;
}

// 97 tokens, each a character.
class Letters final : public Tokenizer {
 public:
  std::string kind() const override { return "letters"; }
  int64_t vocab() const override { return 97; }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (char c : text)
      ids.push_back(c - ' ');
  }
  std::string decode(int32_t id) const override { return std::string(1, static_cast<char>(' ' + id % 95)); }
  std::string to_json() const override { return "{}"; }
};

// Rank `wisher` asks to stop before token `token` of its text.
struct Wish {
  int wisher = -1;
  int token = 0;
};

// What every rank draws: 40 tokens, more than the context of 16.
std::vector<RunSampler::Sample> samples_of(const Layout& layout, const Wish& stop = {}) {
  RunConfig config = run_config(layout);
  config.sample.prompt = "Hi";
  config.sample.tokens = 40;
  std::mutex mutex;
  std::vector<RunSampler::Sample> samples(static_cast<size_t>(layout.ranks()));
  run_as_threads(layout.tensor, layout.data, layout.pipeline, [&](const ProcessGroups& groups) {
    const auto device = make_reference_device();
    StepRunner runner(config, *device, groups);
    runner.initialize();
    train(runner, layout, 0);
    const Letters letters;
    RunSampler sampler(config, letters, *device, runner, groups);
    int asked = 0;
    const auto wish = [&] {
      const bool now = groups.grid.rank() == stop.wisher && asked++ == stop.token;
      return now ? StopWish::terminate : StopWish::none;
    };
    const RunSampler::Sample sample = sampler.draw(wish);
    const std::lock_guard lock(mutex);
    samples[static_cast<size_t>(groups.grid.rank())] = sample;
  });
  return samples;
}

TEST(RunSampler, DrawsTheTextOfOneProcess) {
  const std::string one = samples_of({}).front().text;
  ASSERT_EQ(one.size(), 42u);
  const std::string untied = samples_of({.tied = false}).front().text;
  EXPECT_NE(untied, one);
  for (const Layout& layout : split_layouts())
    for (const RunSampler::Sample& sample : samples_of(layout)) {
      EXPECT_EQ(sample.text, layout.tied ? one : untied) << testing::name_of(layout);
      EXPECT_EQ(sample.stop, StopWish::none);
    }
  // Where each rank has the whole model, rank 0 draws alone.
  const auto data = samples_of({.data = 2});
  EXPECT_EQ(data[0].text, one);
  EXPECT_EQ(data[1].text, "");
}

TEST(RunSampler, AWishOfOneRankEndsTheTextOfAll) {
  const std::string one = samples_of({}).front().text;
  for (const int wisher : {0, 3, 7})
    for (const auto& sample : samples_of({.tensor = 2, .data = 2, .pipeline = 2}, {wisher, 9})) {
      EXPECT_EQ(sample.text, one.substr(0, 2 + 9));
      EXPECT_EQ(sample.stop, StopWish::terminate);
    }
}

// Training does not notice.
TEST(RunSampler, ChangesNothingThatTrainingSees) {
  const Layout layout{.tensor = 2, .pipeline = 2, .sequence = true, .rows = 3};
  RunConfig config = run_config(layout);
  config.model.dropout = 0.2;
  std::mutex mutex;
  std::map<bool, std::vector<testing::Values>> weights;  // of rank 0
  for (const bool sampled : {false, true})
    run_as_threads(2, 1, 2, [&](const ProcessGroups& groups) {
      const auto device = make_reference_device();
      StepRunner runner(config, *device, groups);
      runner.initialize();
      const Letters letters;
      RunSampler sampler(config, letters, *device, runner, groups);
      for (int step = 0; step < 3; ++step) {
        train(runner, layout, step);
        if (sampled) sampler.draw([] { return StopWish::none; });
      }
      const std::lock_guard lock(mutex);
      if (groups.grid.rank() != 0) return;
      for (const Parameter& p : runner.parameters().all())
        weights[sampled].push_back(testing::to_host(*device, p.weight));
    });
  EXPECT_TRUE(weights[false] == weights[true]);
}

}  // namespace
}  // namespace hearth
