// The fast CPU implementation of every operation.  The contract is device/ops.h; each group has a file here.
//
// An operation is cut into tasks by its shapes alone and run on the thread pool; a sum that crosses tasks is
// written as partial sums in fixed blocks and added in order.  So the bits of a result do not depend on the
// number of threads.  Kernels are vectorised through simd().
#pragma once

#include <algorithm>
#include <vector>

#include "base/thread_pool.h"
#include "device/cpu/gemm.h"
#include "device/cpu/simd.h"
#include "device/ops.h"

namespace hearth::cpu {

class CpuOps final : public Ops {
 public:
  // `isa` must be one that this machine has; `native_bf16`: multiply bf16 matrices with bf16 instructions
  // instead of converting them to fp32 panels.
  CpuOps(int threads, Isa isa, bool native_bf16);

  // linear.cpp
  void linear_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                      Activation activation, const Tensor& pre) override;
  void linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx, const Tensor& pre) override;
  void linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw,
                              const Tensor& dbias) override;
  void gelu_forward(const Tensor& pre, const Tensor& y) override;

  // norm.cpp
  void residual_norm_forward(const ResidualNorm& p) override;
  void norm_apply(const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                  const Tensor& bias, const Tensor& normed) override;
  void residual_norm_backward(const ResidualNormBackward& p) override;

  // attention.cpp, attention_backward.cpp
  void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                         const Tensor& lse) override;
  void attention_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& dout, const Tensor& lse, const Tensor& scratch, const Tensor& dq,
                          const Tensor& dk, const Tensor& dv) override;
  void attention_decode(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                        const Tensor& out) override;

  // embedding.cpp
  void embed_tokens(const Tensor& tokens, const Tensor& table, int64_t vocab_start,
                    const Tensor& out) override;
  void embed_tokens_backward(const Tensor& tokens, const Tensor& d, int64_t vocab_start,
                             const Tensor& dtable) override;
  void embed_positions(const Tensor& x, const Tensor& positions, const Tensor& table,
                       const Dropout& dropout) override;
  void embed_positions_backward(const Tensor& d, const Tensor& positions, const Dropout& dropout,
                                const Tensor& dtable) override;

  // loss.cpp
  void cross_entropy_statistics(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                                const Tensor& stats) override;
  void cross_entropy_rescale(const Tensor& stats, const Tensor& global_max) override;
  void cross_entropy_finish(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                            const Tensor& stats, const Tensor& losses, const Tensor& dlogits) override;

  // optimizer.cpp
  void sum_of_squares(const Tensor& x, const Tensor& total) override;
  void sum(const Tensor& x, const Tensor& total) override;
  void adamw(std::span<const AdamWSegment> segments, const AdamWConfig& config) override;

  // elementwise.cpp
  void add(const Tensor& a, const Tensor& b, const Tensor& out) override;
  void cast(const Tensor& from, const Tensor& to) override;
  void copy(const Tensor& from, const Tensor& to) override;
  void fill_zero(const Tensor& x) override;

 private:
  // Calls body(begin, end) for pieces of `grain` of [0, count), the last may be shorter: on the pool, or,
  // when all of it is too little work (`cost` is about nanoseconds for one of count), here.
  template <class Body>
  void parallel(int64_t count, int64_t grain, double cost, const Body& body) {
    constexpr double worth_waking_a_thread = 8000;
    const int64_t pieces = (count + grain - 1) / grain;
    const auto piece = [&](int64_t i) { body(i * grain, std::min(count, (i + 1) * grain)); };
    if (pieces > 1 && static_cast<double>(count) * cost >= worth_waking_a_thread)
      return pool_.run(pieces, piece);
    for (int64_t i = 0; i < pieces; ++i)
      piece(i);
  }

  void cast_f64(const Tensor& from, const Tensor& to);
  void reduce_partials(const float* partial, int64_t blocks, int64_t stride, int64_t C, float* target);
  void scatter_rows(const int32_t* index, const Tensor& d, int64_t start, const Tensor& dtable);
  double sum_blocks(const Tensor& x, bool squares);

  ThreadPool pool_;
  Isa isa_;
  Gemm gemm_;
  // Partial sums of the operation that is running: grown on the first step, then reused.
  std::vector<float> partial_;
  std::vector<double> partial_sums_;
  std::vector<int64_t> segment_begin_;
};

// Calls function(T{}) with the compute type that `type` names.
template <class Function>
void with_compute_type(DType type, const Function& function) {
  check(type == DType::f32 || type == DType::bf16, "the cpu device computes in F32 and BF16, not in ",
        name_of(type));
  return type == DType::f32 ? function(float{}) : function(bf16{});
}

// The operand must be there, of this shape, and dense in its last dimension.
inline void expect(std::string_view name, const Tensor& tensor, const Shape& shape) {
  check(static_cast<bool>(tensor), name, " is absent");
  check(tensor.shape == shape, name, " is ", tensor.shape, ", expected ", shape);
  const int last = shape.rank() - 1;
  check(shape[last] <= 1 || tensor.stride[last] == 1, name, " has gaps between neighbours");
}
inline void expect_if_present(std::string_view name, const Tensor& tensor, const Shape& shape) {
  if (tensor) expect(name, tensor, shape);
}

// The elements of an operand that may be absent.
template <class T>
T* data_or_null(const Tensor& tensor) {
  return tensor ? tensor.as<T>() : nullptr;
}

// Rows of a [N, C] operand, or nothing.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  Rows() = default;
  explicit Rows(const Tensor& tensor) : data(data_or_null<T>(tensor)), stride(tensor.stride[0]) {}
  explicit operator bool() const { return data != nullptr; }
  T* operator[](int64_t row) const { return data ? data + row * stride : nullptr; }
};

// Working memory of the calling thread for one task, 64-byte aligned: grown to the largest request and kept.
// A second call gives the same memory.
float* thread_scratch(int64_t floats);

}  // namespace hearth::cpu
