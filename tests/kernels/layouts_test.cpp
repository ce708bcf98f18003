// A GPT on the kernels in layouts of several ranks: every gradient against one process, within what bf16
// loses.  The ranks are threads that share one GPU; their tensors go through host memory.
#include <gtest/gtest.h>

#include <mutex>

#include "comm/staged_communicator.h"
#include "parallel/layout_trace.h"
#include "parallel/thread_ranks.h"
#include "support/model_harness.h"

namespace hearth::testing {
namespace {

// A communicator that somebody else owns.
class Borrowed final : public Communicator {
 public:
  explicit Borrowed(Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Request all_reduce(const Tensor& t, Reduce op) override { return inner_.all_reduce(t, op); }
  Request reduce_scatter(const Tensor& in, const Tensor& out) override {
    return inner_.reduce_scatter(in, out);
  }
  Request all_gather(const Tensor& in, const Tensor& out) override { return inner_.all_gather(in, out); }
  Request broadcast(const Tensor& t, int root) override { return inner_.broadcast(t, root); }
  Request exchange(std::span<const Transfer> transfers) override { return inner_.exchange(transfers); }
  void barrier() override { inner_.barrier(); }

 private:
  Communicator& inner_;
};

ProcessGroups staged(const ProcessGroups& host, Device& device) {
  ProcessGroups groups;
  groups.grid = host.grid;
  const auto lend = [&](Communicator& axis) -> std::unique_ptr<Communicator> {
    if (axis.size() == 1) return std::make_unique<SelfCommunicator>();
    return std::make_unique<StagedCommunicator>(std::make_unique<Borrowed>(axis), device);
  };
  groups.tensor = lend(*host.tensor);
  groups.data = lend(*host.data);
  groups.pipeline = lend(*host.pipeline);
  return groups;
}

RunConfig small_config(const Layout& layout) {
  RunConfig config = config_of(layout);
  config.model.heads = 4;
  config.model.channels = 64;
  config.optimizer.clip = 0;
  return config;
}

std::vector<HostBatch> batches_of(const RunConfig& config, const Grid& grid) {
  const int64_t rows = config.train.micro_batch, ranks = grid.size(Axis::data);
  std::vector<HostBatch> batches;
  for (int64_t j = 0; j < config.train.batch / (ranks * rows); ++j) {
    HostBatch batch;
    batch.first_sample = (j * ranks + grid.at(Axis::data)) * rows;
    batch.rows = rows;
    for (int64_t i = 0; i < rows * config.model.context; ++i) {
      const auto draw = static_cast<uint64_t>(batch.first_sample * config.model.context + i);
      batch.tokens.push_back(static_cast<int32_t>(mix64(draw) % 97));
      batch.targets.push_back(draw % 7 == 3 ? -1 : static_cast<int32_t>(mix64(draw + 1000) % 97));
    }
    batches.push_back(batch);
  }
  return batches;
}

struct Pass {
  double loss = 0, norm = 0;
  std::map<std::string, Values> gradients;  // whole tensors
};

// Puts a piece, a rectangle, into its place.
void place(Pass& pass, const ParamSpec& spec, const GradientPiece& piece, const Values& values) {
  Values& whole = pass.gradients[piece.name];
  whole.resize(static_cast<size_t>(spec.shape.elements()));
  const bool matrix = spec.shape.rank() > 1;
  const int64_t columns = matrix ? spec.shape[1] : 1, width = matrix ? piece.local.shape[1] : 1;
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t row = piece.start[0] + i / width, column = (matrix ? piece.start[1] : 0) + i % width;
    whole[static_cast<size_t>(row * columns + column)] = values[static_cast<size_t>(i)];
  }
}

// The first step.
Pass pass_of(const Layout& layout) {
  const RunConfig config = small_config(layout);
  std::map<std::string, ParamSpec> table;
  for (const ParamSpec& spec : parameter_table(config.model))
    table[spec.name] = spec;
  Pass pass;
  std::mutex mutex;
  run_as_threads(layout.tensor, layout.data, layout.pipeline, [&](const ProcessGroups& host) {
    const auto device = make_cuda_device({});
    const ProcessGroups groups = staged(host, *device);
    StepRunner runner(config, *device, groups);
    runner.initialize();
    const auto collect = [&] {
      for (const GradientPiece& piece : runner.gradient_pieces()) {
        const Values values = to_host(*device, piece.local);
        const std::lock_guard lock(mutex);
        place(pass, table.at(piece.name), piece, values);
      }
    };
    const StepResult result = runner.run({0, 1e-3, 1}, batches_of(config, groups.grid), collect);
    const std::lock_guard lock(mutex);
    if (groups.grid.rank() != 0) return;
    pass.loss = result.loss;
    pass.norm = result.grad_norm;
  });
  return pass;
}

Layout in_bf16(Layout layout) {
  layout.precision = Precision::bf16;
  layout.layers = 2;
  layout.batch = 4;
  return layout;
}

class CudaLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(CudaLayouts, EveryGradientIsThatOfOneProcess) {
  static const Pass one = pass_of(in_bf16({}));
  const Pass split = pass_of(in_bf16(GetParam()));
  EXPECT_NEAR(split.loss, one.loss, 2e-3 * one.loss);
  EXPECT_NEAR(split.norm, one.norm, 1e-2 * one.norm);
  ASSERT_EQ(split.gradients.size(), one.gradients.size());
  for (const auto& [name, gradient] : one.gradients) {
    const Values& mine = split.gradients.at(name);
    // Zero but for rounding: the softmax does not see a constant added to all keys.
    const size_t key_bias = name.find("attn.k.bias");
    if (key_bias != std::string::npos) {
      const std::string query_bias = name.substr(0, key_bias) + "attn.q.bias";
      EXPECT_LT(norm_of(mine), 0.1 * norm_of(one.gradients.at(query_bias))) << name;
      continue;
    }
    EXPECT_GT(cosine(mine, gradient), 0.999) << name;
    EXPECT_NEAR(norm_of(mine) / norm_of(gradient), 1.0, 0.01) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Some, CudaLayouts,
                         ::testing::Values(Layout{.data = 2}, Layout{.tensor = 2},
                                           Layout{.tensor = 2, .sequence = true, .rows = 2},
                                           Layout{.pipeline = 2}, Layout{.tensor = 2, .data = 2, .zero = 1}),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace hearth::testing
