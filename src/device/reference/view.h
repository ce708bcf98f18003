// Views: how the reference reads and writes tensors, so that its loops look like the formulas.
//
// x(n, c) is a double when read, whatever the tensor stores, and rounds once when assigned.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "tensor/tensor.h"

namespace hearth::reference {

// The master type (f64 or f32) that goes with a compute type; device/ops.h calls them m and c.
template <class Compute>
using Master = std::conditional_t<std::is_same_v<Compute, double>, double, float>;

// One stored element: converts to double, rounds when assigned.
template <class Scalar>
class Element {
 public:
  explicit Element(Scalar& stored) : stored_(stored) {}

  operator double() const {
    if constexpr (std::is_same_v<Scalar, bf16>)
      return static_cast<float>(stored_);
    else
      return static_cast<double>(stored_);
  }
  const Element& operator=(double value) const {
    if constexpr (std::is_same_v<Scalar, bf16>)
      stored_ = bf16(static_cast<float>(value));  // by way of f32, as an implementation in f32 rounds
    else
      stored_ = static_cast<Scalar>(value);
    return *this;
  }
  const Element& operator=(const Element& other) const { return *this = static_cast<double>(other); }
  const Element& operator+=(double value) const { return *this = *this + value; }
  const Element& operator*=(double value) const { return *this = *this * value; }

 private:
  Scalar& stored_;
};

// A tensor whose elements are known to be `Scalar`.  Converts from Tensor (and checks the type); the view of
// an absent tensor is false and must not be indexed.
template <class Scalar>
class View {
 public:
  View(const Tensor& tensor)
      : data_(tensor ? tensor.as<Scalar>() : nullptr), shape_(tensor.shape), stride_(tensor.stride) {}

  explicit operator bool() const { return data_ != nullptr; }
  int64_t dim(int i) const { return shape_[i]; }

  template <class... Index>
  Element<Scalar> operator()(Index... index) const {
    int64_t offset = 0;
    int i = 0;
    ((offset += index * stride_[i++]), ...);
    return Element<Scalar>(data_[offset]);
  }

 private:
  Scalar* data_;
  Shape shape_;
  std::array<int64_t, Shape::max_rank> stride_;
};

// Calls function(Scalar{}) with the floating type that `type` names.
template <class Function>
void with_scalar(DType type, const Function& function) {
  switch (type) {
    case DType::f64:
      return function(double{});
    case DType::f32:
      return function(float{});
    case DType::bf16:
      return function(bf16{});
    default:
      check(false, "an operation on ", name_of(type), " elements");
  }
}

// The same for the types that a master tensor can have.
template <class Function>
void with_master(DType type, const Function& function) {
  check(type == DType::f64 || type == DType::f32, "a master tensor of ", name_of(type));
  return type == DType::f64 ? function(double{}) : function(float{});
}

// The operand must be there and have this shape.
inline void expect(std::string_view name, const Tensor& tensor, const Shape& shape) {
  check(static_cast<bool>(tensor), name, " is absent");
  check(tensor.shape == shape, name, " is ", tensor.shape, ", expected ", shape);
  const int last = shape.rank() - 1;
  check(shape[last] <= 1 || tensor.stride[last] == 1, name, " has gaps between neighbours");
}

inline void expect_if_present(std::string_view name, const Tensor& tensor, const Shape& shape) {
  if (tensor) expect(name, tensor, shape);
}

// The elements of a contiguous tensor as one row.
inline Tensor flat(const Tensor& tensor) {
  return tensor.reshaped({tensor.elements()});
}

}  // namespace hearth::reference
