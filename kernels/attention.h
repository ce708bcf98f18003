// Launchers of causal attention (attention.cu, attention_backward.cu, attention_decode.cu).
//
// As in elementwise.h: pointers are device memory, everything is ordered on `stream` and returns at once,
// nothing is allocated.  Addresses are multiples of 16 bytes, strides of 8 elements; head sizes are multiples
// of 8 up to max_attention_head_size.  Sizes in between those of the tensor-core tiles (16, 32, 64, 80, 96,
// 128) are filled up with zeros.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/elementwise.h"

namespace hearth::kernels {

constexpr int64_t max_attention_head_size = 128;

struct AttentionShape {
  int64_t batch;
  int64_t time;
  int64_t heads;     // of queries
  int64_t kv_heads;  // divides `heads`; query head h reads key and value head h / (heads / kv_heads)
  int64_t head_size;
};

// A [B, T, H, D] operand: element (b, t, h, d) is data[b * batch_stride + t * token_stride + h * head_stride
// + d]. The strides are those of a heads view (Tensor::stride[0..2]).
template <class Element>
struct HeadsView {
  Element* data;
  int64_t batch_stride, token_stride, head_stride;

  operator HeadsView<const Element>() const { return {data, batch_stride, token_stride, head_stride}; }
};
template <>
struct HeadsView<const bf16> {
  const bf16* data;
  int64_t batch_stride, token_stride, head_stride;
};

// out = softmax(q k^T / sqrt(D), causal) v;
// lse [B, H, T] = natural log of the sum of exp of the scaled scores.
void attention_forward(const AttentionShape& shape, const HeadsView<const bf16>& q,
                       const HeadsView<const bf16>& k, const HeadsView<const bf16>& v,
                       const HeadsView<bf16>& out, float* lse, cudaStream_t stream);

// Overwrites dq, dk, dv, which overlap no input.  delta [B, H, T] receives rowsum(dout * out).
void attention_backward(const AttentionShape& shape, const HeadsView<const bf16>& q,
                        const HeadsView<const bf16>& k, const HeadsView<const bf16>& v,
                        const HeadsView<const bf16>& out, const HeadsView<const bf16>& dout, const float* lse,
                        float* delta, const HeadsView<bf16>& dq, const HeadsView<bf16>& dk,
                        const HeadsView<bf16>& dv, cudaStream_t stream);

// One query per row of the batch (q, out [B, 1, H, D]) against the first shape.time positions of k and v.
void attention_decode(const AttentionShape& shape, const HeadsView<const bf16>& q,
                      const HeadsView<const bf16>& k, const HeadsView<const bf16>& v,
                      const HeadsView<bf16>& out, cudaStream_t stream);

}  // namespace hearth::kernels
