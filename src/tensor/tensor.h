// Tensor: a view of elements in some device's memory.  It owns nothing; Buffer (device/device.h) does.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "tensor/dtype.h"

namespace hearth {

// Up to four dimensions.  Letters used throughout: B batch, T time, C channels, H heads, D head size,
// V vocabulary, L layers, N = B*T.
class Shape {
 public:
  static constexpr int max_rank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    check(dims.size() <= max_rank, "a shape has at most ", max_rank, " dimensions, not ", dims.size());
    for (int64_t d : dims)
      dims_[rank_++] = d;
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i)
      n *= dims_[i];
    return n;
  }
  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i)
      if (dims_[i] != other.dims_[i]) return false;
    return true;
  }
  // The same shape with dimension `i` replaced.
  Shape with(int i, int64_t size) const {
    Shape s = *this;
    s.dims_[i] = size;
    return s;
  }

 private:
  std::array<int64_t, max_rank> dims_{};
  int rank_ = 0;
};

// "[3, 64]"
std::string to_string(const Shape& shape);
inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << to_string(shape);
}

// A view: address, type, shape, and strides in elements.  The innermost dimension always has stride 1.
// A default-constructed Tensor is "absent": optional operands are passed that way.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  std::array<int64_t, Shape::max_rank> stride{};

  Tensor() = default;
  // A contiguous view.
  Tensor(void* address, DType type, const Shape& dims) : data(address), dtype(type), shape(dims) {
    int64_t step = 1;
    for (int i = dims.rank() - 1; i >= 0; --i) {
      stride[i] = step;
      step *= dims[i];
    }
  }

  explicit operator bool() const { return data != nullptr; }
  int64_t elements() const { return shape.elements(); }
  int64_t bytes() const { return elements() * size_of(dtype); }
  int64_t dim(int i) const { return shape[i]; }
  bool contiguous() const {
    int64_t step = 1;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      if (shape[i] != 1 && stride[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }

  // The elements as T*; the type must match.
  template <class T>
  T* as() const {
    check(dtype == dtype_of<T>(), "tensor of ", name_of(dtype), " read as ", name_of(dtype_of<T>()));
    return static_cast<T*>(data);
  }

  // Indices [begin, begin + count) of dimension `dim`.
  Tensor slice(int dim, int64_t begin, int64_t count) const {
    check(begin >= 0 && count >= 0 && begin + count <= shape[dim], "slice [", begin, ", ", begin + count,
          ") of dimension ", dim, " of ", shape);
    Tensor t = *this;
    t.data = static_cast<std::byte*>(data) + begin * stride[dim] * size_of(dtype);
    t.shape = shape.with(dim, count);
    return t;
  }
  Tensor rows(int64_t begin, int64_t count) const { return slice(0, begin, count); }

  // The same elements under another shape; the tensor must be contiguous.
  Tensor reshaped(const Shape& dims) const {
    check(contiguous(), "reshape of a tensor with gaps, ", shape);
    check(dims.elements() == elements(), "reshape of ", shape, " to ", dims);
    return Tensor(data, dtype, dims);
  }

  // [rows, C] with a row stride seen as [outer, rows / outer, ...]: the heads view of a slice of a fused
  // buffer. From [B*T, >= H*D] at column `column`: a [B, T, H, D] view.
  Tensor heads(int64_t batch, int64_t column, int64_t head_count, int64_t head_size) const {
    check(shape.rank() == 2 && shape[0] % batch == 0, "heads view of ", shape, " for batch ", batch);
    check(column + head_count * head_size <= shape[1], "heads view past the row of ", shape);
    Tensor t;
    t.data = static_cast<std::byte*>(data) + column * size_of(dtype);
    t.dtype = dtype;
    const int64_t time = shape[0] / batch;
    t.shape = {batch, time, head_count, head_size};
    t.stride = {time * stride[0], stride[0], head_size, 1};
    return t;
  }
};

}  // namespace hearth
