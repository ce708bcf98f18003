#include "bench/roofline.h"

#include <cstdio>

namespace hearth::bench {

namespace {

// On Hopper mma.sync tops out near 60-65% of what wgmma reaches.
constexpr double mma_sync_share = 0.62;

double expected_share(const Case& c, double product_share) {
  return c.product && product_share > 0 ? std::min(c.expected, product_share) : c.expected;
}

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char line[512];
  std::snprintf(line, sizeof line, pattern, values...);
  return line;
}

std::string line_of(const Case& c, double expected_step) {
  const double ideal = c.ideal_seconds(h200.flops, h200.bandwidth);
  const double expected = ideal / c.expected;
  const bool products = c.flops / h200.flops > c.bytes() / h200.bandwidth;
  const std::string count = c.times == 0 ? "-" : format("%.4g", c.times);
  const std::string step = c.times == 0 ? "-" : format("%.1f", 100 * c.times * expected / expected_step);
  const std::string flops = c.flops == 0 ? "-" : format("%.1f", c.flops * 1e-9);
  const std::string intensity = c.flops == 0 ? "-" : format("%.0f", c.flops / c.bytes());
  return format("| %s | %s | %s | %s | %.1f | %s | %s | %.1f | %.0f%% | %.1f | %s | - |\n", c.name.c_str(),
                c.shape.c_str(), count.c_str(), flops.c_str(), c.bytes() * 1e-6, intensity.c_str(),
                products ? "products" : "memory", ideal * 1e6, 100 * c.expected, expected * 1e6,
                step.c_str());
}

std::string summary(const StepShape& s) {
  const StepTime with = step_time(s, h200);
  const StepTime without = step_time(s, h200, mma_sync_share);
  const auto line = [&](const char* what, double seconds) {
    return format("| %s | %.1f | %.0f | %.1f%% |\n", what, seconds * 1e3,
                  static_cast<double>(s.tokens()) / seconds / 1e3, 100 * mfu(s, seconds));
  };
  return "| step of one microbatch | ms | 1000 tokens/s | MFU |\n|---|---|---|---|\n" +
         line("at the ceilings", with.ideal) + line("expected, products with wgmma", with.expected) +
         line("expected, products with mma.sync", without.expected);
}

}  // namespace

StepTime step_time(const StepShape& s, const Ceilings& ceilings, double product_share) {
  StepTime total;
  for (const Case& c : all_cases(s)) {
    const double ideal = c.times * c.ideal_seconds(ceilings.flops, ceilings.bandwidth);
    total.ideal += ideal;
    total.expected += ideal / expected_share(c, product_share);
  }
  return total;
}

double mfu(const StepShape& s, double step_seconds) {
  return flops_per_token(s.model) * static_cast<double>(s.tokens()) / step_seconds / h200_datasheet_flops;
}

std::string roofline_text() {
  std::string text_of_all;
  for (const char* name : {"124M", "1558M"}) {
    const StepShape s = step_shape(name, Precision::bf16);
    const double expected_step = step_time(s, h200).expected;
    text_of_all += text("\n### GPT-2 ", name, ": a microbatch of ", s.batch, " x ", s.model.context,
                        " tokens, loss in chunks of ", s.chunk(), "\n\n");
    text_of_all +=
        "| operation | shape | a step | GFLOP | MB | FLOP/B | bound by | ideal us | expected share | "
        "expected us "
        "| % of step | measured |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    for (const Case& c : all_cases(s))
      text_of_all += line_of(c, expected_step);
    text_of_all += "\n" + summary(s);
  }
  return text_of_all;
}

}  // namespace hearth::bench
