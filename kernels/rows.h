// The [N, C] operand of a kernel: rows of C contiguous elements with a stride between them.
#pragma once

#include <cstdint>

namespace hearth::kernels {

// `data` is a multiple of 16 bytes, `stride` (in elements) a multiple of 8.  Default: absent.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr T* row(int64_t r) const { return data + r * stride; }
};

}  // namespace hearth::kernels
