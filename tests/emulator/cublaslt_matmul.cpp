// The products of the stand-in for cuBLASLt.
//
// Sums are fp32 in the order of k; where parts of k may be added in another way, they are, in the worst one.
#include <cmath>
#include <vector>

#include "emulator/cublaslt.h"
#include "tensor/dtype.h"

namespace hearth::cublaslt {

namespace {

float load(DataType type, const void* from, size_t index) {
  return type == DataType::bf16 ? static_cast<float>(static_cast<const bf16*>(from)[index])
                                : static_cast<const float*>(from)[index];
}

void store(DataType type, void* to, size_t index, float value) {
  if (type == DataType::bf16)
    static_cast<bf16*>(to)[index] = bf16(value);
  else
    static_cast<float*>(to)[index] = value;
}

float rounded(DataType type, float value) {
  return type == DataType::bf16 ? static_cast<float>(bf16(value)) : value;
}

size_t index(size_t row, size_t column, int64_t stride) {
  return row + column * static_cast<size_t>(stride);
}

// gelu and its derivative, tanh form: x s(2u) with u = c (x + 0.044715 x^3) and s the logistic function.
constexpr float gelu_c = 0.797884560802865f;
float gelu_sigmoid(float x) {
  return 1 / (1 + std::exp(-2 * gelu_c * (x + 0.044715f * x * x * x)));
}
float gelu(float x) {
  return x * gelu_sigmoid(x);
}
float gelu_derivative(float x) {
  const float s = gelu_sigmoid(x);
  return s + 2 * x * s * (1 - s) * gelu_c * (1 + 3 * 0.044715f * x * x);
}

class Product {
 public:
  explicit Product(const Matmul& p)
      : p_(p),
        m_(p.d_layout.rows),
        n_(p.d_layout.columns),
        k_(p.operation.a == Operation::none ? p.a_layout.columns : p.a_layout.rows),
        a_(m_ * k_) {
    for (size_t l = 0; l < k_; ++l)
      for (size_t i = 0; i < m_; ++i)
        a_[l * m_ + i] = element(p.a_layout, p.a, p.operation.a, i, l);
  }

  void run() {
    for (size_t j = 0; j < n_; ++j)
      finish(j, column(j));
    if (p_.operation.epilogue == Epilogue::bgrad_b) bias_gradient();
  }

 private:
  static float element(const MatrixLayout& layout, const void* x, Operation operation, size_t row,
                       size_t column) {
    if (operation == Operation::transpose) std::swap(row, column);
    return load(layout.type, x, index(row, column, layout.stride));
  }

  // Column j of op(A) op(B).
  std::vector<float> column(size_t j) const {
    const size_t parts = p_.scheme == ReductionScheme::none ? 1 : 3;
    std::vector<float> sum(m_);
    for (size_t part = 0; part < parts; ++part) {
      // In place, whoever comes first adds first.
      const size_t next = p_.scheme == ReductionScheme::in_place ? (part + p_.number) % parts : part;
      const std::vector<float> product = partial(j, k_ * next / parts, k_ * (next + 1) / parts);
      for (size_t i = 0; i < m_; ++i)
        sum[i] +=
            p_.scheme == ReductionScheme::output_type ? rounded(p_.d_layout.type, product[i]) : product[i];
    }
    return sum;
  }

  std::vector<float> partial(size_t j, size_t begin, size_t end) const {
    std::vector<float> sum(m_);
    for (size_t l = begin; l < end; ++l) {
      const float b = element(p_.b_layout, p_.b, p_.operation.b, l, j);
      const float* a = a_.data() + l * m_;
      for (size_t i = 0; i < m_; ++i)
        sum[i] += a[i] * b;
    }
    return sum;
  }

  // C is not read when beta is 0.
  void finish(size_t j, const std::vector<float>& sums) const {
    for (size_t i = 0; i < m_; ++i) {
      float value = p_.alpha * sums[i];
      if (p_.beta != 0) value += p_.beta * load(p_.c_layout.type, p_.c, index(i, j, p_.c_layout.stride));
      store(p_.d_layout.type, p_.d, index(i, j, p_.d_layout.stride), epilogue(value, i, j));
    }
  }

  float epilogue(float value, size_t i, size_t j) const {
    const MatmulDesc& operation = p_.operation;
    const DataType type = p_.d_layout.type;
    const size_t aux = index(i, j, operation.aux_stride);
    switch (operation.epilogue) {
      case Epilogue::none:
      case Epilogue::bgrad_b:
        return value;
      case Epilogue::bias:
        return value + load(type, operation.bias, i);
      case Epilogue::gelu:
        return gelu(value);
      case Epilogue::gelu_bias:
        return gelu(value + load(type, operation.bias, i));
      case Epilogue::gelu_aux_bias:
        value += load(type, operation.bias, i);
        [[fallthrough]];
      case Epilogue::gelu_aux:
        store(type, operation.aux, aux, value);
        return gelu(value);
      case Epilogue::dgelu:
        return value * gelu_derivative(load(type, operation.aux, aux));
    }
    return NAN;
  }

  void bias_gradient() const {
    for (size_t j = 0; j < n_; ++j) {
      float sum = 0;
      for (size_t l = 0; l < k_; ++l)
        sum += element(p_.b_layout, p_.b, p_.operation.b, l, j);
      store(p_.d_layout.type, p_.operation.bias, j, sum);
    }
  }

  const Matmul& p_;
  size_t m_, n_, k_;
  std::vector<float> a_;  // op(A), column after column
};

}  // namespace

void compute(const Matmul& p) {
  Product(p).run();
}

}  // namespace hearth::cublaslt
