#include "device/cuda/cuda_ops.h"

#include <algorithm>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/residual_norm.h"

namespace hearth::cuda {

namespace {

using kernels::HeadsView;
using kernels::Product;
using kernels::Rows;

template <class T>
T* pointer(const Tensor& t) {
  return t ? t.as<T>() : nullptr;
}

// [N, C] with its row stride; absent stays absent.
template <class T>
Rows<T> rows(const Tensor& t) {
  if (!t) return {};
  check(t.shape.rank() == 2, "expected rows, got a tensor of shape ", t.shape);
  return {t.as<std::remove_const_t<T>>(), t.stride[0]};
}

template <class T>
HeadsView<T> heads(const Tensor& t) {
  check(t.shape.rank() == 4 && t.stride[3] == 1, "expected heads, got a tensor of shape ", t.shape);
  return {t.as<bf16>(), t.stride[0], t.stride[1], t.stride[2]};
}

kernels::AttentionShape shape_of(const Tensor& q, const Tensor& k) {
  return {q.dim(0), q.dim(1), q.dim(2), k.dim(2), q.dim(3)};
}

// A product without epilogue: a's rows run along k, but for a weight gradient, whose c is fp32.
kernels::GemmArgs product(Product product, const Tensor& a, const Tensor& b, const Tensor& c) {
  const bool gradient = product == Product::weight_gradient;
  kernels::GemmArgs args;
  args.product = product;
  args.m = c.dim(0);
  args.n = c.dim(1);
  args.k = a.dim(gradient ? 0 : 1);
  args.a = a.as<bf16>();
  args.b = b.as<bf16>();
  args.a_stride = a.stride[0];
  args.b_stride = b.stride[0];
  args.c = gradient ? nullptr : c.as<bf16>();
  args.accumulator = gradient ? c.as<float>() : nullptr;
  args.c_stride = c.stride[0];
  return args;
}

// The product of a layer that needs the most room, without matrices.
kernels::GemmArgs weight_gradient(const OpSizes::Linear& linear, float* column_sums) {
  kernels::GemmArgs args;
  args.product = Product::weight_gradient;
  args.m = linear.outputs;
  args.n = linear.inputs;
  args.k = linear.rows;
  args.a_stride = args.m;
  args.b_stride = args.c_stride = args.n;
  args.column_sums = column_sums;
  return args;
}

kernels::CrossEntropyStatistics statistics(const Tensor& stats) {
  float* first = stats.as<float>();
  const int64_t n = stats.dim(1);
  return {first, first + n, first + 2 * n};
}

}  // namespace

void* Workspace::at_least(size_t bytes) {
  if (bytes <= memory_.bytes()) return memory_.data();
  memory_ = Buffer();  // waits for the stream, and leaves room for the larger one
  memory_ = Buffer(device_, bytes);
  return memory_.data();
}

size_t CudaOps::workspace_bytes(const OpSizes& sizes) const {
  size_t most = kernels::residual_norm_backward_workspace_bytes(sizes.norm_rows, sizes.channels);
  most = std::max(most, kernels::sum_workspace_bytes(sizes.summed));
  float present = 0;  // only whether there are column sums counts
  for (const OpSizes::Linear& linear : sizes.linears)
    most = std::max(most, gemm_->workspace_bytes(weight_gradient(linear, &present)));
  return most;
}

// ---- linear

void CudaOps::linear_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                             Activation activation, const Tensor& pre) {
  kernels::GemmArgs args = product(Product::forward, x, w, y);
  args.bias = pointer<bf16>(bias);
  args.gelu = activation == Activation::gelu;
  args.pre = pointer<bf16>(pre);
  args.pre_stride = pre ? pre.stride[0] : 0;
  multiply(args);
}

void CudaOps::linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx, const Tensor& pre) {
  kernels::GemmArgs args = product(Product::input_gradient, dy, w, dx);
  args.factor_pre = pointer<bf16>(pre);
  args.pre_stride = pre ? pre.stride[0] : 0;
  multiply(args);
}

void CudaOps::linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw,
                                     const Tensor& dbias) {
  kernels::GemmArgs args = product(Product::weight_gradient, dy, x, dw);
  args.column_sums = pointer<float>(dbias);
  multiply(args);
}

void CudaOps::multiply(const kernels::GemmArgs& args) {
  gemm_->run(args, workspace_.at_least(gemm_->workspace_bytes(args)), stream_);
}

void CudaOps::gelu_forward(const Tensor& pre, const Tensor& y) {
  kernels::gelu_forward(pre.as<bf16>(), pre.stride[0], y.as<bf16>(), y.stride[0], y.dim(0), y.dim(1),
                        stream_);
}

// ---- residual stream and layernorm

void CudaOps::residual_norm_forward(const ResidualNorm& p) {
  kernels::ResidualNorm k;
  k.rows = p.residual.dim(0);
  k.channels = p.residual.dim(1);
  k.residual = rows<const bf16>(p.residual);
  k.branch = rows<const bf16>(p.branch);
  k.branch_bias = pointer<bf16>(p.branch_bias);
  k.residual_out = rows<bf16>(p.residual_out);
  k.weight = pointer<bf16>(p.weight);
  k.bias = pointer<bf16>(p.bias);
  if (p.weight) {
    k.normed = rows<bf16>(p.normed);
    k.mean = p.mean.as<float>();
    k.rstd = p.rstd.as<float>();
  }
  k.eps = static_cast<float>(p.eps);
  kernels::residual_norm_forward(k, p.dropout, step_, stream_);
}

void CudaOps::norm_apply(const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                         const Tensor& bias, const Tensor& normed) {
  kernels::norm_apply(rows<const bf16>(x), mean.as<float>(), rstd.as<float>(), weight.as<bf16>(),
                      pointer<bf16>(bias), rows<bf16>(normed), x.dim(0), x.dim(1), stream_);
}

void CudaOps::residual_norm_backward(const ResidualNormBackward& p) {
  kernels::ResidualNormBackward k;
  k.rows = p.d_residual.dim(0);
  k.channels = p.d_residual.dim(1);
  k.d_normed = p.weight ? rows<const bf16>(p.d_normed) : Rows<const bf16>{};
  k.d_residual = rows<bf16>(p.d_residual);
  k.accumulate = p.accumulate;
  k.x = rows<const bf16>(p.x);
  if (p.weight) {
    k.mean = p.mean.as<float>();
    k.rstd = p.rstd.as<float>();
    k.weight = p.weight.as<bf16>();
    k.d_weight = p.d_weight.as<float>();
    k.d_bias = pointer<float>(p.d_bias);
  }
  k.d_branch = rows<bf16>(p.d_branch);
  k.d_branch_bias = pointer<float>(p.d_branch_bias);
  void* workspace = workspace_.at_least(kernels::residual_norm_backward_workspace_bytes(k.rows, k.channels));
  kernels::residual_norm_backward(k, p.dropout, step_, workspace, stream_);
}

// ---- attention

void CudaOps::attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                const Tensor& lse) {
  kernels::attention_forward(shape_of(q, k), heads<const bf16>(q), heads<const bf16>(k), heads<const bf16>(v),
                             heads<bf16>(out), lse.as<float>(), stream_);
}

void CudaOps::attention_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                 const Tensor& dout, const Tensor& lse, const Tensor& scratch,
                                 const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  kernels::attention_backward(shape_of(q, k), heads<const bf16>(q), heads<const bf16>(k),
                              heads<const bf16>(v), heads<const bf16>(out), heads<const bf16>(dout),
                              lse.as<float>(), scratch.as<float>(), heads<bf16>(dq), heads<bf16>(dk),
                              heads<bf16>(dv), stream_);
}

void CudaOps::attention_decode(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                               const Tensor& out) {
  kernels::AttentionShape shape = shape_of(q, k);
  shape.time = length;
  kernels::attention_decode(shape, heads<const bf16>(q), heads<const bf16>(k), heads<const bf16>(v),
                            heads<bf16>(out), stream_);
}

// ---- embeddings

void CudaOps::embed_tokens(const Tensor& tokens, const Tensor& table, int64_t vocab_start,
                           const Tensor& out) {
  kernels::embed_tokens(tokens.as<int32_t>(), rows<const bf16>(table), vocab_start, table.dim(0),
                        rows<bf16>(out), out.dim(0), out.dim(1), stream_);
}

void CudaOps::embed_tokens_backward(const Tensor& tokens, const Tensor& d, int64_t vocab_start,
                                    const Tensor& dtable) {
  kernels::embed_tokens_backward(tokens.as<int32_t>(), rows<const bf16>(d), vocab_start, rows<float>(dtable),
                                 dtable.dim(0), d.dim(0), d.dim(1), stream_);
}

void CudaOps::embed_positions(const Tensor& x, const Tensor& positions, const Tensor& table,
                              const Dropout& dropout) {
  kernels::embed_positions(rows<bf16>(x), pointer<int32_t>(positions), rows<const bf16>(table),
                           table ? table.dim(0) : 0, x.dim(0), x.dim(1), dropout, step_, stream_);
}

void CudaOps::embed_positions_backward(const Tensor& d, const Tensor& positions, const Dropout& dropout,
                                       const Tensor& dtable) {
  kernels::embed_positions_backward(rows<bf16>(d), pointer<int32_t>(positions), rows<float>(dtable),
                                    dtable ? dtable.dim(0) : 0, d.dim(0), d.dim(1), dropout, step_, stream_);
}

// ---- loss

void CudaOps::cross_entropy_statistics(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                                       const Tensor& stats) {
  kernels::cross_entropy_statistics(rows<const bf16>(logits), targets.as<int32_t>(), shard, statistics(stats),
                                    logits.dim(0), logits.dim(1), stream_);
}

void CudaOps::cross_entropy_rescale(const Tensor& stats, const Tensor& global_max) {
  kernels::cross_entropy_rescale(statistics(stats), global_max.as<float>(), stats.dim(1), stream_);
}

void CudaOps::cross_entropy_finish(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                                   const Tensor& stats, const Tensor& losses, const Tensor& dlogits) {
  kernels::cross_entropy_finish(rows<const bf16>(logits), targets.as<int32_t>(), shard, statistics(stats),
                                losses.as<float>(), rows<bf16>(dlogits), step_, logits.dim(0), logits.dim(1),
                                stream_);
}

// ---- optimizer and element-wise

void CudaOps::sum_of_squares(const Tensor& x, const Tensor& total) {
  check(x.contiguous(), "sum over a tensor with gaps");
  void* workspace = workspace_.at_least(kernels::sum_workspace_bytes(x.elements()));
  if (x.dtype == DType::bf16)
    kernels::sum_of_squares(x.as<bf16>(), x.elements(), total.as<double>(), workspace, stream_);
  else
    kernels::sum_of_squares(x.as<float>(), x.elements(), total.as<double>(), workspace, stream_);
}

void CudaOps::sum(const Tensor& x, const Tensor& total) {
  check(x.contiguous(), "sum over a tensor with gaps");
  void* workspace = workspace_.at_least(kernels::sum_workspace_bytes(x.elements()));
  kernels::sum(x.as<float>(), x.elements(), total.as<double>(), workspace, stream_);
}

void CudaOps::adamw(std::span<const AdamWSegment> segments, const AdamWConfig& config) {
  std::vector<kernels::AdamWRun> runs;
  for (const AdamWSegment& s : segments)
    runs.push_back({s.master.as<float>(), s.moment1.as<float>(), s.moment2.as<float>(), s.grad.as<float>(),
                    pointer<bf16>(s.weight), s.master.elements(), s.decay});
  kernels::adamw(runs, config, step_, stream_);
}

void CudaOps::add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check(a.contiguous() && b.contiguous() && out.contiguous(), "addition of tensors with gaps");
  if (a.dtype == DType::bf16)
    kernels::add(a.as<bf16>(), b.as<bf16>(), out.as<bf16>(), a.elements(), stream_);
  else
    kernels::add(a.as<float>(), b.as<float>(), out.as<float>(), a.elements(), stream_);
}

void CudaOps::cast(const Tensor& from, const Tensor& to) {
  check(from.contiguous() && to.contiguous(), "cast of a tensor with gaps");
  check(from.dtype != DType::f64 && to.dtype != DType::f64, "the CUDA kernels have no f64 casts");
  if (from.dtype == to.dtype)
    copy(from, to);
  else if (from.dtype == DType::f32)
    kernels::cast(from.as<float>(), to.as<bf16>(), from.elements(), stream_);
  else
    kernels::cast(from.as<bf16>(), to.as<float>(), from.elements(), stream_);
}

void CudaOps::copy(const Tensor& from, const Tensor& to) {
  check(from.contiguous() && to.contiguous() && from.dtype == to.dtype,
        "copy of a tensor with gaps or another type");
  kernels::copy_bytes(from.data, to.data, static_cast<size_t>(from.bytes()), stream_);
}

void CudaOps::fill_zero(const Tensor& x) {
  check(x.contiguous(), "clearing a tensor with gaps");
  kernels::fill_zero(x.data, static_cast<size_t>(x.bytes()), stream_);
}

}  // namespace hearth::cuda
