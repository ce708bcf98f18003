#include "bench/measure.h"

#include <algorithm>
#include <cmath>

namespace hearth::bench {

double quantile(std::vector<double> values, double q) {
  check(!values.empty(), "a quantile of nothing");
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

Timing summarise(const std::vector<double>& seconds, int64_t calls_per_sample) {
  return {quantile(seconds, 0.5), quantile(seconds, 0.1), quantile(seconds, 0.9),
          static_cast<int64_t>(seconds.size()), calls_per_sample};
}

namespace {

// Operand sets, used in turn.
class Sets {
 public:
  Sets(Device& device, const Case& c, int64_t most) : device_(device), case_(c) {
    const double wanted = 3 * static_cast<double>(device.cache_bytes()) / std::max(1.0, c.bytes());
    const auto count = std::clamp(static_cast<int64_t>(std::ceil(std::min(wanted, 1e6))), int64_t{1}, most);
    for (int64_t i = 0; i < count; ++i) {
      sets_.emplace_back(device, c);
      if (c.prepare) c.prepare(device.ops(), sets_.back().tensors());
    }
  }
  void run() {
    case_.run(device_.ops(), sets_[next_].tensors());
    next_ = (next_ + 1) % sets_.size();
  }

 private:
  Device& device_;
  const Case& case_;
  std::vector<Instance> sets_;
  size_t next_ = 0;
};

double timed(Device& device, Sets& sets, int64_t calls) {
  const auto watch = device.stopwatch();
  watch->start();
  for (int64_t i = 0; i < calls; ++i)
    sets.run();
  watch->stop();
  return watch->seconds();
}

// Runs until the clocks and caches are what they will be; returns the seconds of one call.
double warm_up(Device& device, Sets& sets, double least_seconds) {
  double elapsed = timed(device, sets, 1);  // workspaces grow
  int64_t calls = 1;
  double latest = 0;
  do {
    latest = timed(device, sets, calls);
    elapsed += latest;
    latest /= static_cast<double>(calls);
    calls *= 2;
  } while (elapsed < least_seconds);
  return latest;
}

}  // namespace

Timing measure(Device& device, const Case& c, const Effort& effort) {
  const StepScalars scalars(device);
  Sets sets(device, c, effort.most_sets);
  const double once = warm_up(device, sets, effort.warm_up_seconds);
  const auto calls = static_cast<int64_t>(std::clamp(std::ceil(effort.seconds_per_sample / once), 1.0, 1e4));

  std::vector<std::unique_ptr<Stopwatch>> watches;
  for (int64_t i = 0; i < effort.samples; ++i) {
    watches.push_back(device.stopwatch());
    watches.back()->start();
    for (int64_t call = 0; call < calls; ++call)
      sets.run();
    watches.back()->stop();
  }
  std::vector<double> seconds;
  for (const auto& watch : watches)
    seconds.push_back(watch->seconds() / static_cast<double>(calls));
  device.synchronize();
  return summarise(seconds, calls);
}

}  // namespace hearth::bench
