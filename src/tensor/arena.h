// Planned memory.  A run's memory is laid out before anything is allocated, by functions that take pieces
// from a Carver; the same functions run once without memory to measure (that is `hearth plan` and the
// start-up report) and once with it.  There is no allocation inside a training step.
#pragma once

#include <cstddef>

#include "tensor/tensor.h"

namespace hearth {

// Hands out consecutive pieces of one region.  Without a base address it only counts.
class Carver {
 public:
  // Every piece starts on a cache line pair (and on what the GPU's widest loads want).
  static constexpr size_t alignment = 128;

  // Measures.
  Carver() = default;
  // Carves from [base, base + size); taking more is a programming error.
  Carver(void* base, size_t size) : base_(static_cast<std::byte*>(base)), size_(size) {}

  bool measuring() const { return base_ == nullptr; }
  // Bytes taken so far.
  size_t used() const { return offset_; }

  // A contiguous tensor.  While measuring, its address is not null (so that it counts as present) and must
  // not be used.
  Tensor take(DType dtype, const Shape& shape) {
    offset_ = (offset_ + alignment - 1) / alignment * alignment;
    return take_adjacent(dtype, shape);
  }

  // The same, directly behind the previous piece: both together are one fused tensor.
  Tensor take_adjacent(DType dtype, const Shape& shape) {
    const size_t bytes = static_cast<size_t>(shape.elements() * size_of(dtype));
    const size_t begin = offset_;
    check(measuring() || begin + bytes <= size_, "the plan was too small: ", begin + bytes, " > ", size_);
    offset_ = begin + bytes;
    std::byte* address = measuring() ? reinterpret_cast<std::byte*>(alignment) : base_ + begin;
    return Tensor(address, dtype, shape);
  }

 private:
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  size_t offset_ = 0;
};

}  // namespace hearth
