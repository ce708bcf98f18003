// The reference implementation of every operation: plain loops, one thread, double arithmetic.
//
// It is the oracle of the tests and the place to read what an operation does.  The contract, with shapes and
// types, is device/ops.h; each group of operations has a file here.  A file has the formulas first, as
// functions of views, and then the methods, which check shapes and choose the storage types.
#pragma once

#include "device/ops.h"

namespace hearth::reference {

class ReferenceOps : public Ops {
 public:
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

  // attention.cpp
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
};

}  // namespace hearth::reference
