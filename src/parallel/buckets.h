// Gradient buckets: which gradients travel together, and where each lies in the buffer that does.
//
// Gradients are packed in the order in which the backward pass finishes them, so that a bucket can leave
// while earlier layers are still being computed.  A bucket's buffer is [D, part]: part d holds, for each
// tensor in turn, the rows that rank d owns, chunk_rows(rows, D) of them with zeros behind the last.  So one
// reduce-scatter gives every rank its rows of all tensors, and one all-gather brings them together again.
// With D = 1 part (no ZeRO) the buffer is simply the tensors in a row, for an all-reduce.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/split.h"

namespace hearth {

// A gradient as buckets see it.
struct BucketTensor {
  int64_t rows;  // of the local tensor; a vector has rows of one element
  int64_t row_elements;
  bool alone = false;  // in a bucket of its own (a tied embedding: its second half comes from elsewhere)
};

struct Bucket {
  // One tensor's place.
  struct Entry {
    size_t tensor;  // index into what plan_buckets() was given
    int64_t rows;
    int64_t row_elements;
    int64_t part_offset;  // elements, from the start of each part
  };
  int parts = 1;
  int64_t part_elements = 0;
  std::vector<Entry> entries;

  int64_t elements() const { return parts * part_elements; }
  // The rows of an entry in part d, and where the first of them lies, in elements from the bucket's start.
  Range rows(const Entry& entry, int part) const { return rows_of(entry.rows, parts, part); }
  int64_t offset(const Entry& entry, int part) const { return part * part_elements + entry.part_offset; }
};

// Packs the tensors, in the given order, into buckets of about `capacity` elements: a bucket is closed before
// it would grow beyond that; a tensor that is larger has one of its own.
// Every tensor is in exactly one bucket.
std::vector<Bucket> plan_buckets(std::span<const BucketTensor> tensors, int parts, int64_t capacity);

}  // namespace hearth
