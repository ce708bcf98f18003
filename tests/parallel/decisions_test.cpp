// What one rank finds, all ranks decide: a gradient that is not a number on one of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "parallel/layout_trace.h"
#include "support/decorator.h"

namespace hearth {
namespace {

// Puts a value into what this rank gives to the first large sum of a step, while it is armed.
class Poisons : public testing::Decorator {
 public:
  Poisons(std::unique_ptr<Communicator> inner, const int* step) : Decorator(std::move(inner)), step_(step) {}
  Request all_reduce(const Tensor& t, Reduce op) override {
    poison(t);
    return inner_->all_reduce(t, op);
  }
  Request reduce_scatter(const Tensor& in, const Tensor& out) override {
    poison(in);
    return inner_->reduce_scatter(in, out);
  }

 private:
  void poison(const Tensor& t) const {
    if (rank() == size() - 1 && *step_ == 1 && t.elements() > 100)
      t.as<double>()[t.elements() / 2] = std::numeric_limits<double>::infinity();
  }
  const int* step_;
};

using Weights = std::map<std::string, std::vector<double>>;

Weights weights_of(const StepRunner& runner, Device& device) {
  Weights weights;
  for (const Parameter& p : runner.parameters().all()) {
    auto& values = weights[p.spec.name];
    values.resize(static_cast<size_t>(p.weight.elements()));
    device.copy_out(values.data(), p.weight);
  }
  return weights;
}

struct Case {
  const char* name;
  Layout layout;
  Axis poisoned;
};

class Decisions : public ::testing::TestWithParam<Case> {};

TEST_P(Decisions, ANumberThatIsNoneOnOneRankSkipsTheStepOnAll) {
  const Layout& layout = GetParam().layout;
  const RunConfig config = config_of(layout);
  HostBatch batch;
  batch.rows = 1;
  batch.tokens.assign(16, 5);
  batch.targets.assign(16, 6);
  // Ranks are in the same step, so one number serves them all: they meet at the end of each.
  int current = 0;
  std::mutex mutex;
  run_as_threads(
      layout.tensor, layout.data, layout.pipeline,
      [&](const ProcessGroups& groups) {
        const auto device = make_reference_device();
        StepRunner runner(config, *device, groups);
        runner.initialize();
        for (int step = 0; step < 3; ++step) {
          for (Communicator* axis : {groups.tensor.get(), groups.data.get(), groups.pipeline.get()})
            axis->barrier();
          {
            const std::lock_guard lock(mutex);
            current = step;
          }
          for (Communicator* axis : {groups.tensor.get(), groups.data.get(), groups.pipeline.get()})
            axis->barrier();
          const Weights before = weights_of(runner, *device);
          const StepResult result =
              runner.run({step * 12, 1e-2, step + 1},
                         std::vector<HostBatch>(static_cast<size_t>(layout.batch / layout.data), batch));
          EXPECT_EQ(result.finite, step != 1) << groups.grid.rank();
          EXPECT_EQ(weights_of(runner, *device) == before, step == 1) << groups.grid.rank();
          EXPECT_TRUE(runner.weights_finite());
          EXPECT_FALSE(runner.odd_replica().has_value());
        }
      },
      [&](Axis axis, std::unique_ptr<Communicator> c) -> std::unique_ptr<Communicator> {
        if (axis != GetParam().poisoned) return c;
        return std::make_unique<Poisons>(std::move(c), &current);
      });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Decisions,
    ::testing::Values(Case{"data", {.data = 3}, Axis::data}, Case{"zero", {.data = 3, .zero = 1}, Axis::data},
                      Case{"tensor", {.tensor = 2}, Axis::tensor},
                      Case{"all", {.tensor = 2, .data = 2, .pipeline = 2, .zero = 1}, Axis::data},
                      Case{"sequence", {.tensor = 2, .pipeline = 2, .sequence = true}, Axis::tensor}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hearth
