#include "train/memory_fit.h"

#include <vector>

#include "base/text.h"
#include "train/report.h"
#include "train/step.h"

namespace hearth {

namespace {

// Policies that keep no more than the configured one does, least work first.
std::vector<Recompute> policies_from(Recompute first) {
  std::vector<Recompute> policies;
  for (const Recompute policy : {Recompute::none, Recompute::selective, Recompute::block})
    if (policy >= first) policies.push_back(policy);
  return policies;
}

// Microbatches, from the configured one down, that divide a rank's share of the batch into a number that the
// schedule takes.
std::vector<int64_t> microbatches_from(const RunConfig& config, const Grid& grid) {
  const int64_t share = config.train.batch / grid.size(Axis::data);
  const int64_t multiple = config.parallel.schedule == "interleaved" ? grid.size(Axis::pipeline) : 1;
  std::vector<int64_t> sizes;
  for (int64_t rows = micro_batch_of(config.train); rows >= 1; --rows)
    if (share % rows == 0 && share / rows % multiple == 0) sizes.push_back(rows);
  return sizes;
}

}  // namespace

std::string smaller_run(const RunConfig& config, const Grid& grid, uint64_t free, const Device* device) {
  for (const int64_t rows : microbatches_from(config, grid)) {
    for (const Recompute policy : policies_from(config.train.recompute)) {
      RunConfig smaller = config;
      smaller.train.micro_batch = rows;
      smaller.train.recompute = policy;
      const uint64_t bytes = StepRunner::plan(smaller, grid, device).total();
      if (bytes > free) continue;
      const bool same_rows = rows == micro_batch_of(config.train);
      const bool same_policy = policy == config.train.recompute;
      return text(same_rows ? "" : text("train.micro_batch = ", rows),
                  same_rows || same_policy ? "" : " and ",
                  same_policy ? "" : text("train.recompute = \"", name_of(policy), "\""), " would need ",
                  human_bytes(bytes));
    }
  }
  return "no smaller microbatch fits: use a smaller model, or share it between ranks with parallel.tensor, "
         "parallel.pipeline or parallel.zero = 1";
}

void require_memory(const RunConfig& config, const Grid& grid, const Device& device) {
  const auto free = device.free_bytes();
  const MemoryPlan plan = StepRunner::plan(config, grid, &device);
  if (!free || plan.total() <= *free) return;
  fail_device("the run needs ", memory_line(plan), ", and ", human_bytes(*free), " are free on ",
              device.description(), "; ", smaller_run(config, grid, *free, &device));
}

}  // namespace hearth
