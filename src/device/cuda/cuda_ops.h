// The operations of device/ops.h on a GPU: each checks shapes and types, and calls one launcher of kernels/.
#pragma once

#include "device/cuda/gemm_engine.h"
#include "device/device.h"
#include "device/ops.h"

typedef struct CUstream_st* cudaStream_t;

namespace hearth::cuda {

// Device memory that grows to the largest request.  It is used by one operation at a time, in stream order.
class Workspace {
 public:
  explicit Workspace(Device& device) : device_(device) {}
  // Growing waits for the compute stream.  A training step finds what it needs reserved.
  void* at_least(size_t bytes);

 private:
  Device& device_;
  Buffer memory_;
};

class CudaOps final : public Ops {
 public:
  CudaOps(Device& device, cudaStream_t stream, std::unique_ptr<GemmEngine> gemm)
      : stream_(stream), workspace_(device), gemm_(std::move(gemm)) {}

  // The largest workspace of these operations.
  size_t workspace_bytes(const OpSizes& sizes) const;
  void reserve(size_t bytes) { workspace_.at_least(bytes); }

  void linear_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                      Activation activation, const Tensor& pre) override;
  void linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx, const Tensor& pre) override;
  void linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw,
                              const Tensor& dbias) override;
  void gelu_forward(const Tensor& pre, const Tensor& y) override;
  void residual_norm_forward(const ResidualNorm& p) override;
  void norm_apply(const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                  const Tensor& bias, const Tensor& normed) override;
  void residual_norm_backward(const ResidualNormBackward& p) override;
  void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                         const Tensor& lse) override;
  void attention_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& dout, const Tensor& lse, const Tensor& scratch, const Tensor& dq,
                          const Tensor& dk, const Tensor& dv) override;
  void attention_decode(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                        const Tensor& out) override;
  void embed_tokens(const Tensor& tokens, const Tensor& table, int64_t vocab_start,
                    const Tensor& out) override;
  void embed_tokens_backward(const Tensor& tokens, const Tensor& d, int64_t vocab_start,
                             const Tensor& dtable) override;
  void embed_positions(const Tensor& x, const Tensor& positions, const Tensor& table,
                       const Dropout& dropout) override;
  void embed_positions_backward(const Tensor& d, const Tensor& positions, const Dropout& dropout,
                                const Tensor& dtable) override;
  void cross_entropy_statistics(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                                const Tensor& stats) override;
  void cross_entropy_rescale(const Tensor& stats, const Tensor& global_max) override;
  void cross_entropy_finish(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                            const Tensor& stats, const Tensor& losses, const Tensor& dlogits) override;
  void sum_of_squares(const Tensor& x, const Tensor& total) override;
  void sum(const Tensor& x, const Tensor& total) override;
  void adamw(std::span<const AdamWSegment> segments, const AdamWConfig& config) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& out) override;
  void cast(const Tensor& from, const Tensor& to) override;
  void copy(const Tensor& from, const Tensor& to) override;
  void fill_zero(const Tensor& x) override;

 private:
  void multiply(const kernels::GemmArgs& args);

  cudaStream_t stream_;
  Workspace workspace_;
  std::unique_ptr<GemmEngine> gemm_;
};

}  // namespace hearth::cuda
