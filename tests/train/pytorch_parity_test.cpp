// Loss, gradients and three optimizer steps of a tiny GPT against values that PyTorch computed in fp64
// (tests/reference_values/tiny_gpt.json, made by tests/pytorch/frozen_gradients.py,
// which states the formulas).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/model_harness.h"
#include "train/step.h"

namespace hearth {
namespace {

using nlohmann::json;
using testing::Values;

double unit(uint32_t k, uint32_t i) {
  uint32_t u = i * 2654435761u + k * 2246822519u + 374761393u;
  u ^= u >> 15;
  u *= 2246822519u;
  u ^= u >> 13;
  u *= 3266489917u;
  u ^= u >> 16;
  return u / 4294967296.0;
}

// The formula's weights in the rows that are not padding.
Values initial_weight(const ParamSpec& spec, uint32_t k, int64_t real) {
  Values w(static_cast<size_t>(spec.shape.elements()), 0.0);
  const bool norm_weight = spec.init == Init::ones;
  for (int64_t i = 0; i < real; ++i)
    w[i] = 0.4 * unit(k, static_cast<uint32_t>(i)) - 0.2 + (norm_weight ? 1.0 : 0.0);
  return w;
}

void set_weight(Device& device, const Parameter& p, const Values& values) {
  const std::vector<float> narrow(values.begin(), values.end());
  if (p.weight.dtype == DType::f64)
    device.copy_in(p.weight, values.data());
  else
    device.copy_in(p.weight, narrow.data());
  device.synchronize();
}

// A tensor against the frozen norm, checksum and first values; `scale` replaces the norm where that is zero.
void expect_summary(const Values& got, const json& frozen, double bound, double scale,
                    const std::string& what) {
  double squares = 0, checksum = 0;
  const int64_t real = frozen.at("real");
  for (int64_t i = 0; i < real; ++i) {
    squares += got[i] * got[i];
    checksum += got[i] * (unit(1000, static_cast<uint32_t>(i)) - 0.5);
  }
  EXPECT_NEAR(std::sqrt(squares), frozen.at("norm").get<double>(), bound * scale) << what << ": norm";
  EXPECT_NEAR(checksum, frozen.at("checksum").get<double>(), bound * scale) << what << ": checksum";
  const auto first = frozen.at("first").get<Values>();
  for (size_t i = 0; i < first.size(); ++i)
    EXPECT_NEAR(got[i], first[i], bound * scale) << what << ": element " << i;
  for (size_t i = static_cast<size_t>(real); i < got.size(); ++i)
    ASSERT_EQ(got[i], 0.0) << what << ": padding element " << i;
}

struct Case {
  const char* device;
  Precision precision;
  double bound;  // relative
  int variant;
};

class PytorchParity : public ::testing::TestWithParam<Case> {};

TEST_P(PytorchParity, LossGradientsAndUpdates) {
  std::ifstream file("tests/reference_values/tiny_gpt.json");
  ASSERT_TRUE(file) << "run the tests from the repository's root";
  const json frozen = json::parse(file).at("variants").at(GetParam().variant);
  const double bound = GetParam().bound;

  RunConfig config;
  config.model = testing::small_model(frozen.at("tied"), frozen.at("bias"));
  config.model.context = 8;
  config.train.batch = 2;
  config.train.precision = GetParam().precision;
  auto device = std::string(GetParam().device) == "cpu" ? make_cpu_device(2) : make_reference_device();
  const ProcessGroups groups;
  StepRunner runner(config, *device, groups);
  runner.initialize();
  const json& tensors = frozen.at("parameters");
  EXPECT_EQ(tensors.size(), runner.parameters().all().size());
  const auto with_size = [&](const Parameter& p, const char* what) {
    json summary = tensors.at(p.spec.name).at(what);
    const json& shape = tensors.at(p.spec.name).at("shape");
    summary["real"] = shape.at(0).get<int64_t>() * (shape.size() > 1 ? shape.at(1).get<int64_t>() : 1);
    return summary;
  };
  for (const Parameter& p : runner.parameters().all()) {
    const json summary = with_size(p, "initial");
    set_weight(*device, p, initial_weight(p.spec, tensors.at(p.spec.name).at("k"), summary.at("real")));
    expect_summary(testing::to_host(*device, p.weight), summary, 1e-6, summary.at("norm"), p.spec.name);
  }

  HostBatch batch;
  batch.rows = 2;
  batch.tokens = frozen.at("tokens").get<std::vector<int32_t>>();
  batch.targets = frozen.at("targets").get<std::vector<int32_t>>();
  const double query_norm =
      frozen.at("bias") ? tensors.at("h.0.attn.q.bias").at("gradient").at("norm").get<double>() : 1.0;
  for (int step = 0; step < 4; ++step) {
    const auto compare_gradients = [&] {
      if (step > 0) return;
      for (const Parameter& p : runner.parameters().all()) {
        const json summary = with_size(p, "gradient");
        const bool zero = p.spec.name.find("attn.k.bias") != std::string::npos;
        expect_summary(testing::to_host(*device, p.grad), summary, bound,
                       zero ? query_norm : summary.at("norm").get<double>(), p.spec.name + " gradient");
      }
    };
    const StepResult result = runner.run({0, 1e-3, step + 1}, {batch}, compare_gradients);
    EXPECT_NEAR(result.loss, frozen.at("losses").at(step).get<double>(), bound * 3) << "step " << step;
    if (step == 3) break;
    EXPECT_NEAR(result.grad_norm, frozen.at("gradient_norms").at(step).get<double>(), bound * 3)
        << "step " << step;
    if (step < 2) continue;
    for (const Parameter& p : runner.parameters().all()) {
      // AdamW divides by the size of the gradient: a key bias, whose gradient is rounding noise,
      // may go anywhere.
      if (p.spec.name.find("attn.k.bias") != std::string::npos) continue;
      const json summary = with_size(p, "after_steps");
      expect_summary(testing::to_host(*device, p.weight), summary, bound, summary.at("norm"),
                     p.spec.name + " after 3 steps");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PytorchParity,
                         ::testing::Values(Case{"reference", Precision::fp64, 1e-10, 0},
                                           Case{"reference", Precision::fp64, 1e-10, 1},
                                           Case{"cpu", Precision::fp32, 1e-5, 0},
                                           Case{"cpu", Precision::fp32, 1e-5, 1}),
                         [](const auto& info) {
                           return std::string(info.param.device) + (info.param.variant ? "_untied" : "_tied");
                         });

}  // namespace
}  // namespace hearth
