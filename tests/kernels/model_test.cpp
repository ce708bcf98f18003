// A whole GPT on the kernels: every named gradient against the cpu and the reference, the course of a
// training, and bits that depend on nothing but the arguments.
#include <gtest/gtest.h>

#include "kernels/device_array.h"
#include "parallel/process_groups.h"
#include "support/model_harness.h"
#include "train/step.h"

namespace hearth::testing {
namespace {

using Gradients = std::map<std::string, Values>;

// Nothing is a multiple of a tile: head size 24 lies between two that are built, 111 rows of tokens.
ModelConfig odd_model(double dropout = 0.1) {
  ModelConfig m;
  m.layers = 2;
  m.heads = 3;
  m.channels = 72;
  m.ffn = 200;
  m.context = 37;
  m.vocab = 97;
  m.dropout = dropout;
  return m;
}

struct Pass {
  double loss = 0;
  Gradients gradients;
};

// One batch of three samples forward and backward; every fifth target is masked, or all of them.
struct PassOptions {
  Recompute recompute = Recompute::none;
  size_t logits_bytes = 0;
  int masked = 5;
};
Pass run_pass(Device& device, const ModelConfig& model, Precision precision,
              const PassOptions& options = {}) {
  const int64_t rows = 3;
  Harness h(device, model, precision, options.recompute, rows, 0, options.logits_bytes);
  h.perturb(0.05);
  h.make_batch(rows, model.context, options.masked);
  StepParams params;
  params.loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(h.valid(), 1));
  params.first_sample = 40;
  h.set_step(params);
  Pass pass;
  pass.loss = h.run(0, rows, model.context, true);
  pass.gradients = h.gradients();
  return pass;
}
Pass on_cuda(const ModelConfig& model, const PassOptions& options = {}) {
  return run_pass(*make_cuda_device({}), model, Precision::bf16, options);
}

void expect_close(const Pass& actual, const Pass& expected) {
  EXPECT_NEAR(actual.loss, expected.loss, 2e-3 * expected.loss);
  for (const auto& [name, g] : expected.gradients) {
    const Values& mine = actual.gradients.at(name);
    // The softmax does not see a constant added to all keys: this gradient is rounding alone.
    const size_t key_bias = name.find("attn.k.bias");
    if (key_bias != std::string::npos) {
      const std::string query_bias = name.substr(0, key_bias) + "attn.q.bias";
      EXPECT_LT(norm_of(mine), 0.1 * norm_of(expected.gradients.at(query_bias))) << name;
      continue;
    }
    EXPECT_GT(cosine(mine, g), 0.999) << name;
    EXPECT_NEAR(norm_of(mine) / norm_of(g), 1.0, 0.01) << name;
  }
}

TEST(CudaModel, EveryGradientIsThatOfTheCpuAndTheReference) {
  ModelConfig grouped = odd_model();
  grouped.heads = 4;
  grouped.kv_heads = 2;
  grouped.channels = 64;
  grouped.tied = false;
  grouped.bias = false;
  for (const ModelConfig& model : {odd_model(), grouped}) {
    const Pass cuda = on_cuda(model);
    expect_close(cuda, run_pass(*make_cpu_device(2), model, Precision::bf16));
    expect_close(cuda, run_pass(*make_reference_device(), model, Precision::bf16));
    expect_close(cuda, run_pass(*make_reference_device(), model, Precision::fp64));
  }
}

// Loss chunks share one weight gradient in fp32, so that their number changes rounding alone.
TEST(CudaModel, TheNumberOfLossChunksDoesNotMatter) {
  ModelConfig model = odd_model();
  model.vocab = 300;
  const size_t row_bytes = static_cast<size_t>(model.padded_vocab()) * sizeof(bf16);
  const Pass one = on_cuda(model);
  for (const size_t chunk : {size_t{28}, size_t{2}}) {  // 4 and 56 chunks of 111 tokens
    const Pass many = on_cuda(model, {.logits_bytes = chunk * row_bytes});
    EXPECT_NEAR(many.loss, one.loss, 1e-6 * one.loss);
    for (const auto& [name, g] : one.gradients)
      EXPECT_LE(relative_error(many.gradients.at(name), g), 1e-6) << name << ", chunks of " << chunk;
  }
}

TEST(CudaModel, RecomputationChangesNoBit) {
  const Pass kept = on_cuda(odd_model());
  for (const Recompute policy : {Recompute::selective, Recompute::block}) {
    const Pass again = on_cuda(odd_model(), {.recompute = policy});
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_EQ(again.gradients, kept.gradients) << static_cast<int>(policy);
  }
}

// Nor does another run, another schedule, or another GPU.
TEST(CudaModel, BitsDependOnTheArgumentsAlone) {
  const Pass first = on_cuda(odd_model());
  const emulator::Options before = emulator::options();
  for (const Schedule& schedule : {Schedule{emulator::Order::forward, emulator::Async::eager},
                                   {emulator::Order::reverse, emulator::Async::lazy},
                                   {emulator::Order::random, emulator::Async::random}}) {
    const WithSchedule with(schedule);
    emulator::options().multiprocessors = schedule.order == emulator::Order::reverse ? 132 : 1;
    const Pass again = on_cuda(odd_model());
    EXPECT_EQ(again.loss, first.loss) << name_of(schedule);
    EXPECT_EQ(again.gradients, first.gradients) << name_of(schedule);
  }
  emulator::options() = before;
}

TEST(CudaModel, WithoutTargetsThereIsNoGradient) {
  const Pass pass = on_cuda(odd_model(), {.masked = 1});
  EXPECT_EQ(pass.loss, 0);
  for (const auto& [name, g] : pass.gradients)
    EXPECT_EQ(norm_of(g), 0) << name;
}

// Losses and gradient norms of ten steps over two microbatches each.
std::vector<StepResult> train_ten_steps(std::unique_ptr<Device> device) {
  RunConfig config;
  config.model = odd_model();
  config.train.precision = Precision::bf16;
  config.train.batch = 4;
  config.train.micro_batch = 2;
  const ProcessGroups groups;
  StepRunner runner(config, *device, groups);
  runner.initialize();
  std::vector<StepResult> results;
  for (int step = 1; step <= 10; ++step) {
    std::vector<HostBatch> batches(2);
    for (int64_t j = 0; j < 2; ++j) {
      HostBatch& batch = batches[static_cast<size_t>(j)];
      batch.first_sample = 4 * (step - 1) + 2 * j;
      batch.rows = 2;
      for (int64_t i = 0; i < 2 * config.model.context; ++i) {
        const auto draw = static_cast<int64_t>(mix64(batch.first_sample * 1000 + i) >> 40);
        const int64_t token = draw * draw % 97 % 23;  // so that there is something to learn
        batch.tokens.push_back(static_cast<int32_t>(token));
        batch.targets.push_back(i % 7 == 3 ? -1 : static_cast<int32_t>((3 * token + 1) % 97));
      }
    }
    results.push_back(runner.run({4 * (step - 1), 3e-3, step}, batches));
  }
  return results;
}

TEST(CudaModel, TenStepsAreThoseOfTheCpu) {
  const auto cuda = train_ten_steps(make_cuda_device({})), cpu = train_ten_steps(make_cpu_device(2));
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_NEAR(cuda[i].loss, cpu[i].loss, 5e-3 * cpu[i].loss) << "step " << i + 1;
    EXPECT_NEAR(cuda[i].grad_norm, cpu[i].grad_norm, 3e-2 * cpu[i].grad_norm) << "step " << i + 1;
  }
  EXPECT_LT(cuda.back().loss, 0.75 * cuda.front().loss);
}

// What the launchers would only check() is refused with a sentence; other devices take any widths.
TEST(CudaModel, WidthsThatTheKernelsCannotRunAreRefused) {
  const auto cuda = make_cuda_device({});
  const ModelWidths good{8192, 128, 24, 128};
  EXPECT_EQ(cuda->unsupported_widths(good), std::nullopt);
  const auto refused = [&](auto change, const std::string& what) {
    ModelWidths widths = good;
    change(widths);
    const auto why = cuda->unsupported_widths(widths);
    ASSERT_TRUE(why) << what;
    EXPECT_NE(why->find(what), std::string::npos) << *why;
    EXPECT_EQ(make_cpu_device(1)->unsupported_widths(widths), std::nullopt);
  };
  refused([](ModelWidths& w) { w.channels = 8200; }, "up to 8192, and it is 8200");
  refused([](ModelWidths& w) { w.channels = 100; }, "and it is 100");
  refused([](ModelWidths& w) { w.head_size = 136; }, "model.heads is 136");
  refused([](ModelWidths& w) { w.head_size = 12; }, "model.heads is 12");
  refused([](ModelWidths& w) { w.ffn = 12; }, "parallel.tensor is 12");
  refused([](ModelWidths& w) { w.vocab = 4; }, "parallel.tensor is 4");
  ModelConfig wide;
  wide.channels = 8200;
  wide.heads = 1025;
  wide.vocab = 100;
  EXPECT_THROW(require_supported(*cuda, wide, 1), Error);
  EXPECT_NO_THROW(require_supported(*cuda, odd_model(), 1));
}

}  // namespace
}  // namespace hearth::testing
