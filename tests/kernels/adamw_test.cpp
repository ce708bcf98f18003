// kernels/adamw.cu against the reference over several steps.
#include "kernels/adamw.h"

#include <deque>

#include "kernels/rows_test_support.h"

namespace hearth::testing {
namespace {

class AdamW : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, AdamW, every_schedule(), schedule_name);

// One run; `shift` elements lie before it, so that its addresses are no multiples of 16.
struct Segment {
  Segment(int64_t count, bool decay, bool weighted, int64_t shift, uint64_t seed)
      : count(count),
        shift(shift),
        decay(decay),
        weighted(weighted),
        master(random_operand<float>(1, count + shift, 0, seed)),
        moment1(random_operand<float>(1, count + shift, 0, seed + 1, 0.1f)),
        moment2(std::vector<float>(static_cast<size_t>(count + shift), 0.01f), 1, count + shift),
        grad(random_operand<float>(1, count + shift, 0, seed + 2)),
        weight(1, count + shift) {}

  template <class T>
  Tensor part(const RowOperand<T>& operand) const {
    return operand.vector().slice(0, shift, count);
  }
  AdamWSegment reference_segment() const {
    return {part(master), part(moment1), part(moment2), part(grad), weighted ? part(weight) : Tensor(),
            decay};
  }
  kernels::AdamWRun run() const {
    return {master.data() + shift,
            moment1.data() + shift,
            moment2.data() + shift,
            grad.data() + shift,
            weighted ? weight.data() + shift : nullptr,
            count,
            decay};
  }

  int64_t count, shift;
  bool decay, weighted;
  RowOperand<float> master, moment1, moment2, grad;
  RowOperand<bf16> weight;
};

void test_steps(const std::deque<Segment>& segments, int steps) {
  std::vector<AdamWSegment> expected;
  std::vector<kernels::AdamWRun> runs;
  for (const Segment& s : segments) {
    if (s.count > 0) expected.push_back(s.reference_segment());
    runs.push_back(s.run());
  }
  const AdamWConfig config{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  for (int t = 1; t <= steps; ++t) {
    const Step step({.learning_rate = 0.01 * t,
                     .clip_scale = t == 1 ? 1 : 0.37,
                     .bias_correction1 = 1 - std::pow(0.9, t),
                     .bias_correction2 = 1 - std::pow(0.95, t)});
    for (const Segment& s : segments) {  // the last step's gradient was cleared
      const auto fresh =
          random_normal<float>(static_cast<int64_t>(s.grad.host.size()), 1.0f, static_cast<uint64_t>(t));
      const_cast<std::vector<float>&>(s.grad.host) = fresh;
      const_cast<DeviceArray<float>&>(s.grad.device).set(fresh);
    }
    kernels::adamw(runs, config, step.data(), nullptr);
    reference().ops().adamw(expected, config);
    if (t < steps) continue;
    for (const Segment& s : segments) {
      expect_near(s.master, fp32_same, "master");
      expect_near(s.moment1, fp32_same, "moment1");
      expect_near(s.moment2, fp32_same, "moment2");
      expect_same(s.grad.device.to_host(), s.grad.host, "grad");
      expect_near(s.weight, s.weighted ? bf16_same : 0, "weight");
      const auto master = s.master.device.to_host();
      const auto weight = s.weight.device.to_host();
      for (int64_t i = s.shift; s.weighted && i < s.shift + s.count; ++i)
        ASSERT_EQ(weight[static_cast<size_t>(i)].bits, bf16(master[static_cast<size_t>(i)]).bits) << i;
    }
  }
}

TEST_P(AdamW, AgainstReference) {
  std::deque<Segment> segments;
  uint64_t seed = 1;
  for (int64_t count : {1, 7, 8, 255, 2048, 2049, 5003}) {
    segments.emplace_back(count, seed % 2 == 0, seed % 4 != 3, seed % 3 == 2 ? 1 : 0, seed);
    ++seed;
  }
  test_steps(segments, 2);
}

// More runs than one launch takes, some of them empty.
TEST(AdamWOnce, ManyRuns) {
  std::deque<Segment> segments;
  for (uint64_t i = 0; i < 36; ++i)
    segments.emplace_back(static_cast<int64_t>(i % 9 == 4 ? 0 : i * 37 + 1), i % 3 == 0, true, 0, i);
  test_steps(segments, 2);
}

// The moments of elements that never had a gradient stay 0 and nothing is divided by 0.
TEST(AdamWOnce, ZeroGradients) {
  const DeviceArray<float> master(std::vector<float>(16, 2.0f)), moment1(std::vector<float>(16, 0.0f)),
      moment2(std::vector<float>(16, 0.0f)), grad(std::vector<float>(16, 0.0f));
  const Step step({.learning_rate = 0.5, .bias_correction1 = 0.1, .bias_correction2 = 0.05});
  const kernels::AdamWRun runs[] = {
      {master.data(), moment1.data(), moment2.data(), grad.data(), nullptr, 16, true}};
  kernels::adamw(runs, {.weight_decay = 0.25}, step.data(), nullptr);
  for (float value : master.to_host())
    EXPECT_EQ(value, 2.0f - 0.5f * 0.25f * 2.0f);
}

}  // namespace
}  // namespace hearth::testing
