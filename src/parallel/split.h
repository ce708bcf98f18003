// Who holds what: layers over pipeline stages, rows over data-parallel ranks.  Pure arithmetic.
#pragma once

#include <cstdint>

namespace hearth {

// A run of whole things: [begin, begin + count).
struct Range {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t end() const { return begin + count; }
  bool operator==(const Range&) const = default;
};

// Part `part` of `parts` of the model's layers.  Where they do not divide evenly, the earlier parts get one
// more: the last one has the LM head besides.  Throws Error(usage) when there are more parts than layers.
Range layers_of(int64_t layers, int parts, int part);

// The same for chunk `chunk` of stage `stage`: the model's parts go round the stages, chunk by chunk.
inline Range layers_of(int64_t layers, int stages, int chunks, int stage, int chunk) {
  return layers_of(layers, stages * chunks, chunk * stages + stage);
}

// Rows of a tensor under ZeRO (Rajbhandari et al. 2020): equal chunks of ceil(rows / D), of which the last
// ones may be short or empty, so that every rank's piece is a rectangle of the tensor.
int64_t chunk_rows(int64_t rows, int ranks);
Range rows_of(int64_t rows, int ranks, int rank);

}  // namespace hearth
