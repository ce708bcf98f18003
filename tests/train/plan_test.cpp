// The plan against what is really allocated and really sent, and against numbers computed by hand.
#include "train/plan.h"

#include <gtest/gtest.h>

#include <array>
#include <mutex>

#include "base/text.h"
#include "model/activations.h"
#include "support/counting.h"
#include "train/layout_check.h"
#include "train/report.h"
#include "train/step.h"

namespace hearth {
namespace {

using testing::CountingCommunicator;
using testing::CountingDevice;

RunConfig gpt2_124m() {
  RunConfig c;
  c.model = *model_preset("gpt2-124m");
  c.train.batch = 512;
  c.train.micro_batch = 16;
  c.train.steps = 19560;
  c.train.precision = Precision::bf16;
  return c;
}

// By hand: wte 50304 x 768 (padded) + wpe 1024 x 768 + 12 x (12 x 768^2 + 13 x 768) + 2 x 768.
constexpr int64_t padded_parameters = 38'633'472 + 786'432 + 12 * (7'077'888 + 9'984) + 1'536;

TEST(Plan, Gpt2ByHand) {
  const RunPlan plan = plan_run(gpt2_124m(), 1, {});
  ASSERT_EQ(plan.stages.size(), 1u);
  const StagePlan& s = plan.stages[0];
  EXPECT_EQ(s.parameters, padded_parameters);
  EXPECT_EQ(padded_parameters, 124'475'904);
  EXPECT_EQ(plan.microbatches, 32);
  EXPECT_EQ(plan.tokens_per_step(), 524'288);
  // Bytes for each parameter: bf16 2, fp32 gradient 4, fp32 master and two moments 12.  Every tensor's size
  // is a multiple of the alignment.
  EXPECT_EQ(s.memory.weights, 2u * padded_parameters);
  EXPECT_EQ(s.memory.gradients, 4u * padded_parameters);
  EXPECT_EQ(s.memory.optimizer, 12u * padded_parameters);
  EXPECT_EQ(s.memory.communication, 0u);
  // A block keeps, for each token, 768 x (3 + 3 qkv + 1 attention + 1 more stream + 2 x 4 MLP) bf16 numbers,
  // and 4 statistics and 12 head sums in fp32; the rest is a few streams.
  const uint64_t tokens = 16 * 1024;
  const uint64_t blocks = 12 * tokens * (2 * 768 * 16 + 4 * 16);
  const uint64_t ends = tokens * (3 * 4 + 2 * 2 * 768 + 2 * 4);
  EXPECT_EQ(s.memory.activations, blocks + ends);
  // 6 x (12 x 12 x 768^2 + 50257 x 768) + 6 x 12 x 768 x 1024
  EXPECT_DOUBLE_EQ(s.flops, (6.0 * (84'934'656 + 38'597'376) + 56'623'104.0) * 524'288);
  EXPECT_EQ(s.tensor.payload + s.data.payload + s.pipeline.payload, 0);
}

// What a GPU's operations work on: 5 sequences are a chunk of 4096 tokens of the loss and a rest.
TEST(Plan, SizesOfOperationsByHand) {
  StageOptions options;
  options.layers = 12;
  options.rows = 5;
  options.time = 1024;
  options.precision = Precision::bf16;
  options.logits_bytes = StageOptions::gpu_logits_bytes;
  const auto sizes_of = [&options] {
    OpSizes sizes;
    add_op_sizes(*model_preset("gpt2-124m"), options, sizes);
    std::vector<std::array<int64_t, 3>> linears;
    for (const auto& linear : sizes.linears)
      linears.push_back({linear.outputs, linear.inputs, linear.rows});
    EXPECT_EQ(sizes.channels, 768);
    return std::pair(linears, sizes.norm_rows);
  };
  using Linears = std::vector<std::array<int64_t, 3>>;
  EXPECT_EQ(sizes_of(), std::pair(Linears({{2304, 768, 5120},
                                           {768, 768, 5120},
                                           {3072, 768, 5120},
                                           {768, 3072, 5120},
                                           {50304, 768, 4096},
                                           {50304, 768, 1024}}),
                                  int64_t{5120}));
  // A rank of two with sequence parallelism, in front of another stage.
  options.layers = 6;
  options.shard = {1, 2};
  options.sequence = true;
  EXPECT_EQ(sizes_of(),
            std::pair(Linears({{1152, 768, 5120}, {768, 384, 5120}, {1536, 768, 5120}, {768, 1536, 5120}}),
                      int64_t{2560}));
}

TEST(Plan, TimeIsTheSumOfItsParts) {
  Hardware slow;
  slow.peak_flops = 1e12;
  slow.memory_bandwidth = 1e18;
  slow.link_bandwidth = 1e18;
  const RunPlan plan = plan_run(gpt2_124m(), 1, slow);
  EXPECT_NEAR(plan.time.total(), flops_per_token(plan.config.model) * 524'288 / 1e12, 1e-2);
  EXPECT_NEAR(plan.mfu, 1.0, 1e-4);
  RunConfig config = gpt2_124m();
  config.parallel.pipeline = 4;
  config.train.micro_batch = 64;  // 8 microbatches
  const RunPlan piped = plan_run(config, 4, slow);
  EXPECT_NEAR(piped.bubble, 3.0 / 8, 1e-12);
  EXPECT_NEAR(piped.time.bubble, piped.time.compute * 3 / 8, 1e-3 * piped.time.bubble);
  // The last stage has the head: more than a quarter.
  EXPECT_GT(piped.time.compute, plan.time.compute / 4);
}

// ZeRO: 6 + 12 / D bytes a parameter, as far as rows divide.
TEST(Plan, ZeroDividesTheOptimizer) {
  RunConfig config = gpt2_124m();
  config.parallel.zero = 1;
  const RunPlan plan = plan_run(config, 8, {});
  EXPECT_EQ(plan.microbatches, 4);
  EXPECT_EQ(plan.stages[0].memory.optimizer, 12u * padded_parameters / 8);
  EXPECT_EQ(plan.stages[0].data.payload, (4 + 2) * padded_parameters + 32);
  EXPECT_DOUBLE_EQ(plan.stages[0].data.sent, 7.0 / 8 * (4 + 2) * padded_parameters + 7.0 / 4 * 32);
}

TEST(Plan, StagesShareTheFlops) {
  RunConfig config = gpt2_124m();
  config.parallel.tensor = 2;
  config.parallel.pipeline = 4;
  const RunPlan plan = plan_run(config, 16, {});
  double sum = 0;
  for (const StagePlan& s : plan.stages)
    sum += s.flops * 2 * 2;  // tensor x data ranks
  EXPECT_NEAR(sum, flops_per_token(config.model) * plan.tokens_per_step(), 1e-9 * sum);
  // 1f1b: min(P - s, M) in flight.
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(plan.stages[i].slots, std::vector<int>{4 - static_cast<int>(i)});
  EXPECT_EQ(plan.stages[0].layers, (std::vector<Range>{{0, 3}}));
}

void refused(const RunConfig& config, int64_t world, const std::vector<std::string>& parts) {
  try {
    plan_run(config, world, {});
    ADD_FAILURE() << "planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Plan, RefusesWhatCannotBeWithTheNearestThatCan) {
  RunConfig config = gpt2_124m();
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  refused(config, 6, {"6 processes", "tensor 2 x parallel.pipeline 2", "4 or 8"});
  config.parallel.data = 2;
  refused(config, 6, {"x parallel.data 2 = 8", "-n 8"});
  config = gpt2_124m();
  refused(config, 3, {"512", "16 x 3", "480 and 528"});
  config.parallel.pipeline = 4;
  config.parallel.schedule = "interleaved";
  config.parallel.virtual_stages = 3;
  config.train.micro_batch = 512 / 2;
  refused(config, 4, {"multiple of the 4 stages", "found 2"});
  refused(gpt2_124m(), 1 << 30, {"1073741824"});
}

TEST(Plan, TextSaysTheMemoryAsTheStartUpReportDoes) {
  RunConfig config = gpt2_124m();
  config.parallel.pipeline = 2;
  const RunPlan plan = plan_run(config, 4, {});
  const std::string printed = text_of(plan, {}, 1'000'000);
  EXPECT_NE(printed.find(memory_line(plan.stages[plan.fullest()].memory)), std::string::npos) << printed;
  EXPECT_NE(printed.find("stage 1 |"), std::string::npos) << printed;
  EXPECT_NE(printed.find("10.01 epochs"), std::string::npos) << printed;
  EXPECT_EQ(plan.stages[0].memory.total(), StepRunner::plan(plan.config, plan.grid).total());
}

// ---- against reality

std::vector<Layout> some_layouts() {
  return {
      {},
      {.tensor = 2},
      {.data = 3},
      {.data = 2, .zero = 1},
      {.data = 5, .zero = 1, .batch = 10},
      {.pipeline = 3},
      {.pipeline = 2, .tied = false},
      {.pipeline = 2, .schedule = "interleaved", .chunks = 2},
      {.tensor = 2, .data = 2, .pipeline = 2, .zero = 1, .recompute = Recompute::block},
      {.tensor = 4, .pipeline = 2, .schedule = "gpipe", .recompute = Recompute::selective, .tied = false},
      {.tensor = 2, .sequence = true, .rows = 3},
      {.tensor = 4, .recompute = Recompute::block, .sequence = true},
      {.tensor = 2, .data = 3, .zero = 1, .sequence = true},
      {.tensor = 2, .pipeline = 2, .recompute = Recompute::selective, .tied = false, .sequence = true},
      {.tensor = 2,
       .data = 2,
       .pipeline = 2,
       .zero = 1,
       .recompute = Recompute::block,
       .sequence = true,
       .rows = 2},
      {.tensor = 2, .pipeline = 2, .schedule = "interleaved", .chunks = 2, .sequence = true},
  };
}

HostBatch zeros(const ModelConfig& model, int64_t rows) {
  HostBatch batch;
  batch.rows = rows;
  batch.tokens.assign(static_cast<size_t>(rows * model.context), 0);
  batch.targets.assign(static_cast<size_t>(rows * model.context), 1);
  return batch;
}

// One step in each layout: what every rank allocated and gave to its communicators, against the plan.
TEST(Plan, MemoryAndTrafficAreThoseOfAStep) {
  for (const Layout& layout : some_layouts()) {
    SCOPED_TRACE(text("tensor ", layout.tensor, " data ", layout.data, " pipeline ", layout.pipeline,
                      " zero ", layout.zero, " ", layout.schedule, layout.sequence ? " sequence" : ""));
    const RunConfig config = config_of(layout);
    const RunPlan plan = plan_run(config, layout.ranks(), {});
    const auto decorate = [](Axis, std::unique_ptr<Communicator> c) -> std::unique_ptr<Communicator> {
      return std::make_unique<CountingCommunicator>(std::move(c));
    };
    std::mutex mutex;
    run_as_threads(
        layout.tensor, layout.data, layout.pipeline,
        [&](const ProcessGroups& groups) {
          CountingDevice device;
          StepRunner runner(config, device, groups);
          runner.initialize();
          const auto payload = [](const std::unique_ptr<Communicator>& c) {
            return static_cast<const CountingCommunicator&>(*c).payload;
          };
          const int64_t before = payload(groups.data);  // the initial weights are gathered too
          const std::vector<HostBatch> batches(
              static_cast<size_t>(layout.batch / (layout.data * layout.rows)),
              zeros(config.model, layout.rows));
          runner.run({}, batches);
          const std::lock_guard lock(mutex);
          const StagePlan& s = plan.stages[static_cast<size_t>(groups.grid.at(Axis::pipeline))];
          EXPECT_EQ(layout.tensor > 1 ? payload(groups.tensor) : 0, s.tensor.payload);
          EXPECT_EQ(layout.data > 1 ? payload(groups.data) - before : 0, s.data.payload);
          EXPECT_EQ(layout.pipeline > 1 ? payload(groups.pipeline) : 0, s.pipeline.payload);
          // Nothing but a few scalars is missing from the plan; with ZeRO the last ranks may have less.
          const auto planned = static_cast<double>(s.memory.total());
          const auto allocated = static_cast<double>(device.allocated);
          EXPECT_LE(allocated, planned + 4096);
          EXPECT_TRUE(groups.data->rank() > 0 || allocated >= planned) << allocated << " of " << planned;
        },
        decorate);
  }
}

// What a profiler of a GPU shows.
TEST(Plan, AStepIsNamedForProfilers) {
  const RunConfig config = config_of({.batch = 1});
  run_as_threads(1, 1, 1, [&](const ProcessGroups& groups) {
    CountingDevice device;
    StepRunner runner(config, device, groups);
    runner.initialize();
    runner.run({}, {zeros(config.model, 1)});
    EXPECT_EQ(device.ranges, "step(forward(head())backward()optimizer())");
  });
}

}  // namespace
}  // namespace hearth
