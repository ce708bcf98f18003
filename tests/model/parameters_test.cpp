// The ParamSpec table: counts, names, fused storage, initial values that do not depend on layout.
#include "model/parameters.h"

#include <gtest/gtest.h>

#include <set>

#include "support/model_harness.h"

namespace hearth {
namespace {

TEST(ParameterTable, CountsOfTheGpt2Family) {
  EXPECT_EQ(parameter_count(*model_preset("gpt2-124m")), 124439808);
  EXPECT_EQ(parameter_count(*model_preset("gpt2-350m")), 354823168);
  EXPECT_EQ(parameter_count(*model_preset("gpt2-774m")), 774030080);
  EXPECT_EQ(parameter_count(*model_preset("gpt2-1558m")), 1557611200);
}

TEST(ParameterTable, HuggingFaceNames) {
  std::set<std::string> names;
  for (const ParamSpec& spec : parameter_table(*model_preset("gpt2-124m")))
    names.insert(spec.hf_name);
  EXPECT_EQ(names.size(), 148u);
  for (const char* name :
       {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.11.ln_1.bias",
        "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.bias",
        "transformer.h.3.mlp.c_fc.weight", "transformer.h.3.mlp.c_proj.weight", "transformer.ln_f.bias"})
    EXPECT_TRUE(names.count(name)) << name;
}

TEST(ParameterTable, DecayIsByRole) {
  for (const ParamSpec& spec : parameter_table(*model_preset("gpt2-124m"))) {
    const bool matrix = spec.shape.rank() == 2;
    EXPECT_EQ(spec.decay, matrix) << spec.name;
  }
}

// q, k and v must be one tensor, also where their sizes are not multiples of the alignment.
TEST(ParameterSet, QkvIsOneTensor) {
  auto device = make_reference_device();
  ModelConfig m = testing::small_model();
  m.heads = 1;
  m.channels = 8;
  ParameterSet set(*device, parameter_table(m), Precision::bf16, ParameterSet::Purpose::training);
  for (const char* kind : {"weight", "bias"}) {
    const Parameter& q = set.at(std::string("h.1.attn.q.") + kind);
    const Parameter& k = set.at(std::string("h.1.attn.k.") + kind);
    const Parameter& v = set.at(std::string("h.1.attn.v.") + kind);
    EXPECT_EQ(static_cast<std::byte*>(q.weight.data) + q.weight.bytes(), k.weight.data);
    EXPECT_EQ(static_cast<std::byte*>(k.weight.data) + k.weight.bytes(), v.weight.data);
    EXPECT_EQ(static_cast<std::byte*>(k.grad.data) + k.grad.bytes(), v.grad.data);
  }
}

TEST(ParameterSet, InitialValues) {
  auto device = make_reference_device();
  ModelConfig m = testing::small_model();
  m.channels = 64;
  m.vocab = 300;
  testing::Harness h(*device, m, Precision::fp32);
  h.initialize(5);
  const auto w = testing::to_host(*device, h.parameters.at("wte.weight").weight);
  double sum = 0, squares = 0;
  for (int i = 0; i < 300 * 64; ++i) {
    sum += w[i];
    squares += w[i] * w[i];
  }
  EXPECT_NEAR(sum / (300 * 64), 0.0, 6e-4);
  EXPECT_NEAR(std::sqrt(squares / (300 * 64)), 0.02, 4e-4);
  for (size_t i = 300 * 64; i < w.size(); ++i)
    ASSERT_EQ(w[i], 0.0);
  const auto proj = testing::to_host(*device, h.parameters.at("h.1.mlp.proj.weight").weight);
  EXPECT_NEAR(testing::norm_of(proj) / std::sqrt(proj.size()), 0.02 / std::sqrt(4.0), 3e-4);
  for (double x : testing::to_host(*device, h.parameters.at("h.0.ln_2.weight").weight))
    EXPECT_EQ(x, 1.0);
  // An element is a function of (seed, tensor, global index) alone.
  const ParamSpec& spec = h.parameters.at("h.1.mlp.proj.weight").spec;
  const auto z = normal4(random_block(random_key(5, RandomDomain::init, spec.id), 25));
  EXPECT_FLOAT_EQ(proj[102], spec.init_std * z[2]);
}

// The ranks of a tensor-parallel group hold the rectangles of the very values that one rank holds.
TEST(ParameterSet, InitialValuesDoNotDependOnTheLayout) {
  auto device = make_reference_device();
  ModelConfig m = testing::small_model();
  m.heads = 4;
  m.channels = 32;
  testing::Harness whole(*device, m, Precision::fp32);
  for (int rank = 0; rank < 4; ++rank) {
    ParameterSet part(*device, parameter_table(m), Precision::fp32, ParameterSet::Purpose::training,
                      {rank, 4});
    for (const Parameter& p : part.all()) {
      write_initial_values(*device, p, 7, 0, p.weight);
      const auto values = testing::to_host(*device, p.weight);
      const auto all = testing::to_host(*device, whole.parameters.at(p.spec.name).weight);
      const int64_t columns = p.local.shape.rank() > 1 ? p.local.shape[1] : 1;
      const int64_t all_columns = p.spec.shape.rank() > 1 ? p.spec.shape[1] : 1;
      const int64_t first_column = p.spec.shape.rank() > 1 ? p.local.start[1] : 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t row = p.local.start[0] + static_cast<int64_t>(i) / columns;
        const int64_t column = first_column + static_cast<int64_t>(i) % columns;
        ASSERT_EQ(values[i], all[row * all_columns + column]) << p.spec.name << " rank " << rank;
      }
    }
  }
}

TEST(ParameterSet, PlanIsWhatIsAllocated) {
  const auto specs = parameter_table(testing::small_model());
  MemoryPlan plan;
  ParameterSet::plan(specs, Precision::bf16, ParameterSet::Purpose::training, {}, plan);
  int64_t elements = 0;
  for (const ParamSpec& spec : specs)
    elements += spec.shape.elements();
  const double slack = static_cast<double>(specs.size()) * Carver::alignment;
  EXPECT_NEAR(static_cast<double>(plan.weights), 2.0 * elements, slack);
  EXPECT_NEAR(static_cast<double>(plan.gradients), 4.0 * elements, slack);
}

}  // namespace
}  // namespace hearth
