#include "train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hearth {

namespace {

// How far `done` lies between `begin` and `end`: 0 before, 1 after; 1 when they coincide.
double progress(double done, double begin, double end) {
  if (done >= end) return 1.0;
  return std::clamp((done - begin) / (end - begin), 0.0, 1.0);
}

}  // namespace

double learning_rate(const OptimizerConfig& c, int64_t steps, double done) {
  const double warmup = static_cast<double>(c.warmup);
  if (done < warmup) return c.lr * (done + 1) / (warmup + 1);

  const double last = static_cast<double>(c.decay_steps > 0 ? c.decay_steps : steps);
  const double range = c.lr - c.min_lr;
  switch (c.schedule) {
    case LrSchedule::constant:
      return c.lr;
    case LrSchedule::linear:
      return c.lr - range * progress(done, warmup, last);
    case LrSchedule::cosine:
      return c.min_lr + range * 0.5 * (1.0 + std::cos(std::numbers::pi * progress(done, warmup, last)));
    case LrSchedule::wsd: {
      const double end = static_cast<double>(steps);
      const double length = c.decay_steps > 0 ? static_cast<double>(c.decay_steps) : end / 5;
      return c.lr - range * progress(done, std::max(warmup, end - length), end);
    }
  }
  return c.lr;
}

}  // namespace hearth
