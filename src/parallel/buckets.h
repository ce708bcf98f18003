// Gradient buckets: which parameters are reduced together, as plain data.
//
// Parameters are taken in the order in which their gradients become complete (last block first).  The token
// embedding receives a second contribution at the very end of the backward pass (its lookup), and its copy on
// the last stage one at the beginning: it is a bucket of its own, the last one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/parameters.h"

namespace hearth {

struct Bucket {
  std::vector<size_t> parameters;  // indices, ascending: their gradients lie one behind the other
  int64_t layer = 0;               // complete when block `layer` is; -1: at the end
};

// Buckets of at most `bytes` of gradients (a larger parameter is a bucket of its own).
std::vector<Bucket> gradient_buckets(const std::vector<Parameter>& parameters, uint64_t bytes);

// Rows of one ZeRO block: ceil(rows / ranks).
inline int64_t block_rows(int64_t rows, int64_t ranks) {
  return (rows + ranks - 1) / ranks;
}

// The rows that block `rank` really has: the last blocks may be short or empty.
struct Rows {
  int64_t first = 0;
  int64_t count = 0;
};
inline Rows block_of(int64_t rows, int64_t ranks, int64_t rank) {
  const int64_t block = block_rows(rows, ranks);
  const int64_t first = std::min(rows, block * rank);
  return {first, std::min(rows, first + block) - first};
}

}  // namespace hearth
