#include "parallel/buckets.h"

#include "base/error.h"

namespace hearth {

std::vector<Bucket> plan_buckets(std::span<const BucketTensor> tensors, int parts, int64_t capacity) {
  check(parts >= 1 && capacity >= 1, "buckets of ", capacity, " elements in ", parts, " parts");
  std::vector<Bucket> buckets;
  bool open = false;  // the last bucket takes more
  for (size_t i = 0; i < tensors.size(); ++i) {
    const BucketTensor& tensor = tensors[i];
    const int64_t share = chunk_rows(tensor.rows, parts) * tensor.row_elements;
    const bool fits = open && (buckets.back().part_elements + share) * parts <= capacity;
    if (!fits || tensor.alone) buckets.push_back({parts, 0, {}});
    Bucket& bucket = buckets.back();
    bucket.entries.push_back({i, tensor.rows, tensor.row_elements, bucket.part_elements});
    bucket.part_elements += share;
    open = !tensor.alone;
  }
  return buckets;
}

}  // namespace hearth
