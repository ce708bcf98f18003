// Sums, conversions and copies of whole tensors.
#include <cstring>

#include "device/reference/reference_ops.h"
#include "device/reference/view.h"

namespace hearth::reference {

template <class Scalar>
static void add_elements(View<Scalar> a, View<Scalar> b, View<Scalar> out) {
  for (int64_t i = 0; i < out.dim(0); ++i)
    out(i) = a(i) + b(i);
}

void ReferenceOps::add(const Tensor& a, const Tensor& b, const Tensor& out) {
  expect("b", b, a.shape);
  expect("out", out, a.shape);
  with_scalar(a.dtype, [&]<class Scalar>(Scalar) { add_elements<Scalar>(flat(a), flat(b), flat(out)); });
}

void ReferenceOps::cast(const Tensor& from, const Tensor& to) {
  check(from.elements() == to.elements(), "cast of ", from.shape, " to ", to.shape);
  with_scalar(from.dtype, [&]<class From>(From) {
    with_scalar(to.dtype, [&]<class To>(To) {
      const View<From> source = flat(from);
      const View<To> target = flat(to);
      for (int64_t i = 0; i < from.elements(); ++i)
        target(i) = source(i);
    });
  });
}

void ReferenceOps::copy(const Tensor& from, const Tensor& to) {
  check(from.dtype == to.dtype, "copy of ", name_of(from.dtype), " to ", name_of(to.dtype));
  check(from.elements() == to.elements(), "copy of ", from.shape, " to ", to.shape);
  check(from.contiguous() && to.contiguous(), "copy of a tensor with gaps");
  std::memmove(to.data, from.data, from.bytes());
}

void ReferenceOps::fill_zero(const Tensor& x) {
  check(x.contiguous(), "fill of a tensor with gaps");
  std::memset(x.data, 0, x.bytes());
}

}  // namespace hearth::reference
