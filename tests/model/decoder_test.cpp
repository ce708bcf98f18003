// The decoder: prompt and single tokens give the logits of a pass over the whole sequence.
#include "model/decoder.h"

#include <gtest/gtest.h>

#include "support/model_harness.h"

namespace hearth {
namespace {

using testing::Harness;

class DecoderTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Device> device() const {
    return GetParam() == "cpu" ? make_cpu_device(2) : make_reference_device();
  }
};

std::vector<float> logits_of(Decoder& decoder) {
  std::vector<float> logits;
  decoder.logits(logits);
  return logits;
}

TEST_P(DecoderTest, TokenByTokenEqualsWholePrompt) {
  auto d = device();
  ModelConfig m = testing::small_model(true, true, 0.3);  // dropout must not be applied
  m.heads = 4;
  m.kv_heads = 2;
  m.channels = 64;
  m.context = 20;
  Harness h(*d, m, Precision::fp32);
  h.perturb(0.2);
  h.make_batch(1, 20, 0);
  Decoder stepwise(m, Precision::fp32, *d, h.parameters);
  Decoder whole(m, Precision::fp32, *d, h.parameters);
  stepwise.prefill(std::span(h.tokens).first(3));
  for (int n = 3; n <= 20; ++n) {
    if (n > 3) stepwise.step(h.tokens[n - 1]);
    whole.prefill(std::span(h.tokens).first(n));
    const std::vector<float> a = logits_of(stepwise);
    const std::vector<float> b = logits_of(whole);
    ASSERT_EQ(a.size(), static_cast<size_t>(m.vocab));
    EXPECT_LT(testing::relative_error({a.begin(), a.end()}, {b.begin(), b.end()}), 1e-5) << n << " tokens";
    EXPECT_EQ(stepwise.length(), n);
  }
}

// The loss of the stage is the cross-entropy of the decoder's logits.
TEST_P(DecoderTest, AgreesWithTheStage) {
  auto d = device();
  const ModelConfig m = testing::small_model();
  Harness h(*d, m, Precision::fp32, Recompute::none, 1);
  h.perturb(0.2);
  h.make_batch(1, 6, 0);
  const double loss = h.run(0, 1, 6, false);
  Decoder decoder(m, Precision::fp32, *d, h.parameters);
  double expected = 0;
  for (int t = 0; t < 6; ++t) {
    if (t == 0)
      decoder.prefill(std::span(h.tokens).first(1));
    else
      decoder.step(h.tokens[t]);
    const std::vector<float> logits = logits_of(decoder);
    double sum = 0;
    for (float x : logits)
      sum += std::exp(x);
    expected += std::log(sum) - logits[h.targets[t]];
  }
  EXPECT_NEAR(loss, expected, 1e-5 * expected);
}

INSTANTIATE_TEST_SUITE_P(Devices, DecoderTest, ::testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hearth
