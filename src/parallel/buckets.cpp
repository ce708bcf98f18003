#include "parallel/buckets.h"

namespace hearth {

namespace {

// The block whose backward pass completes the gradient; the head and the final norm come before all blocks.
int64_t completed_by(const ParamSpec& spec) {
  return spec.layer;
}

}  // namespace

std::vector<Bucket> gradient_buckets(const std::vector<Parameter>& parameters, uint64_t bytes) {
  std::vector<Bucket> buckets;
  uint64_t filled = 0;
  // From the last parameter to the first: the table is in forward order.
  for (size_t i = parameters.size(); i-- > 0;) {
    const ParamSpec& spec = parameters[i].spec;
    const uint64_t size = static_cast<uint64_t>(parameters[i].grad.bytes());
    const bool alone = spec.name == "wte.weight";
    const bool joins = !buckets.empty() && !alone && filled + size <= bytes &&
                       (completed_by(spec) >= 0) == (buckets.back().layer >= 0);
    if (!joins) {
      buckets.push_back({});
      filled = 0;
    }
    filled += size;
    buckets.back().parameters.insert(buckets.back().parameters.begin(), i);
    buckets.back().layer = completed_by(spec);
  }
  return buckets;
}

}  // namespace hearth
