#include "parallel/split.h"

#include <algorithm>

#include "base/error.h"

namespace hearth {

Range layers_of(int64_t layers, int parts, int part) {
  check(part >= 0 && part < parts, "part ", part, " of ", parts);
  if (parts > layers)
    fail_usage("model.layers = ", layers, " cannot be divided into ", parts,
               " parts (parallel.pipeline x parallel.virtual): each needs at least one layer");
  const int64_t each = layers / parts, longer = layers % parts;
  return {part * each + std::min<int64_t>(part, longer), each + (part < longer)};
}

int64_t chunk_rows(int64_t rows, int ranks) {
  return (rows + ranks - 1) / ranks;
}

Range rows_of(int64_t rows, int ranks, int rank) {
  const int64_t chunk = chunk_rows(rows, ranks);
  const int64_t begin = std::min(rows, rank * chunk);
  return {begin, std::min(rows, begin + chunk) - begin};
}

}  // namespace hearth
