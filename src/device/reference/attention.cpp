// Causal multi-head attention (Vaswani et al. 2017).  The weights P are recomputed from the log-sum-exp of
// their row wherever they are needed, as in FlashAttention (Dao et al. 2022), so no T x T array exists.
//
//   S[i, j] = q[i] . k[j] / sqrt(D)      for j <= i
//   P[i, j] = exp(S[i, j] - lse[i]),     lse[i] = log(sum over j of exp(S[i, j]))
//   out[i]  = sum over j of P[i, j] v[j]
//
// H query heads share Hkv key and value heads: head h uses h / (H / Hkv).
#include <algorithm>
#include <vector>

#include "device/reference/reference_ops.h"
#include "device/reference/view.h"

namespace hearth::reference {

// a[b, i, g] . c[b, j, h]
template <class Compute>
static double dot(View<Compute> a, int64_t b, int64_t i, int64_t g, View<Compute> c, int64_t j, int64_t h) {
  double sum = 0;
  for (int64_t d = 0; d < a.dim(3); ++d)
    sum += a(b, i, g, d) * c(b, j, h, d);
  return sum;
}

// One query against keys 0 .. length-1: writes its row of out and returns its log-sum-exp.
template <class Compute>
static double attend(View<Compute> q, View<Compute> k, View<Compute> v, int64_t b, int64_t i, int64_t h,
                     int64_t length, View<Compute> out) {
  const int64_t H = q.dim(2), D = q.dim(3), h_kv = h / (H / k.dim(2));
  std::vector<double> S(length);
  for (int64_t j = 0; j < length; ++j)
    S[j] = dot(q, b, i, h, k, j, h_kv) / std::sqrt(D);

  const double largest = *std::max_element(S.begin(), S.end());
  double sum = 0;
  for (int64_t j = 0; j < length; ++j)
    sum += std::exp(S[j] - largest);
  const double lse = largest + std::log(sum);

  for (int64_t d = 0; d < D; ++d) {
    double o = 0;
    for (int64_t j = 0; j < length; ++j)
      o += std::exp(S[j] - lse) * v(b, j, h_kv, d);
    out(b, i, h, d) = o;
  }
  return lse;
}

// delta[i] = dout[i] . out[i], which is also the sum over j of P[i, j] dP[i, j]
template <class Compute>
static void backward_delta(View<Compute> out, View<Compute> dout, View<Master<Compute>> delta) {
  const int64_t B = out.dim(0), T = out.dim(1), H = out.dim(2);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < T; ++i)
        delta(b, h, i) = dot(dout, b, i, h, out, i, h);
}

// What the backward pass reads, and the weights and their gradients computed from it.
template <class Compute>
struct BackwardInputs {
  View<Compute> q, k, v, dout;
  View<Master<Compute>> lse, delta;

  int64_t B() const { return q.dim(0); }
  int64_t T() const { return q.dim(1); }
  int64_t H() const { return q.dim(2); }
  int64_t D() const { return q.dim(3); }
  int64_t group() const { return q.dim(2) / k.dim(2); }

  double P(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return std::exp(dot(q, b, i, h, k, j, h / group()) / std::sqrt(D()) - lse(b, h, i));
  }
  // dS = P (dP - delta) with dP[i, j] = dout[i] . v[j]
  double dS(int64_t b, int64_t h, int64_t i, int64_t j, double P) const {
    return P * (dot(dout, b, i, h, v, j, h / group()) - delta(b, h, i));
  }
};

// dq[i] = sum over j <= i of dS[i, j] k[j] / sqrt(D)
template <class Compute>
static void backward_queries(const BackwardInputs<Compute>& in, View<Compute> dq) {
  const double scale = 1 / std::sqrt(in.D());
  std::vector<double> sum(in.D());
  for (int64_t b = 0; b < in.B(); ++b) {
    for (int64_t h = 0; h < in.H(); ++h) {
      for (int64_t i = 0; i < in.T(); ++i) {
        std::fill(sum.begin(), sum.end(), 0);
        for (int64_t j = 0; j <= i; ++j) {
          const double dS = in.dS(b, h, i, j, in.P(b, h, i, j));
          for (int64_t d = 0; d < in.D(); ++d)
            sum[d] += dS * in.k(b, j, h / in.group(), d);
        }
        for (int64_t d = 0; d < in.D(); ++d)
          dq(b, i, h, d) = scale * sum[d];
      }
    }
  }
}

// Over the queries i >= j of the heads that share key j:
// dk[j] = sum of dS[i, j] q[i] / sqrt(D),  dv[j] = sum of P[i, j] dout[i]
template <class Compute>
static void backward_keys_and_values(const BackwardInputs<Compute>& in, View<Compute> dk, View<Compute> dv) {
  const double scale = 1 / std::sqrt(in.D());
  std::vector<double> k_sum(in.D()), v_sum(in.D());
  for (int64_t b = 0; b < in.B(); ++b) {
    for (int64_t h_kv = 0; h_kv < dk.dim(2); ++h_kv) {
      for (int64_t j = 0; j < in.T(); ++j) {
        std::fill(k_sum.begin(), k_sum.end(), 0);
        std::fill(v_sum.begin(), v_sum.end(), 0);
        for (int64_t h = h_kv * in.group(); h < (h_kv + 1) * in.group(); ++h) {
          for (int64_t i = j; i < in.T(); ++i) {
            const double P = in.P(b, h, i, j);
            const double dS = in.dS(b, h, i, j, P);
            for (int64_t d = 0; d < in.D(); ++d) {
              k_sum[d] += dS * in.q(b, i, h, d);
              v_sum[d] += P * in.dout(b, i, h, d);
            }
          }
        }
        for (int64_t d = 0; d < in.D(); ++d) {
          dk(b, j, h_kv, d) = scale * k_sum[d];
          dv(b, j, h_kv, d) = v_sum[d];
        }
      }
    }
  }
}

static void expect_heads(const Tensor& q, const Tensor& k, const Tensor& v) {
  check(q.shape.rank() == 4, "q is ", q.shape, ", expected [B, T, H, D]");
  check(k.shape.rank() == 4, "k is ", k.shape, ", expected [B, T, Hkv, D]");
  expect("q", q, q.shape);
  expect("k", k, {q.dim(0), k.dim(1), k.dim(2), q.dim(3)});
  expect("v", v, k.shape);
  check(k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0, q.dim(2), " heads cannot share ", k.dim(2));
}

void ReferenceOps::attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                     const Tensor& lse) {
  expect_heads(q, k, v);
  const int64_t B = q.dim(0), T = q.dim(1), H = q.dim(2);
  check(k.dim(1) == T, "keys for ", k.dim(1), " positions, queries for ", T);
  expect("out", out, q.shape);
  expect("lse", lse, {B, H, T});
  with_scalar(q.dtype, [&]<class Compute>(Compute) {
    const View<Master<Compute>> lse_view(lse);
    for (int64_t b = 0; b < B; ++b)
      for (int64_t h = 0; h < H; ++h)
        for (int64_t i = 0; i < T; ++i)
          lse_view(b, h, i) = attend<Compute>(q, k, v, b, i, h, i + 1, out);
  });
}

void ReferenceOps::attention_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                      const Tensor& dout, const Tensor& lse, const Tensor& scratch,
                                      const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  expect_heads(q, k, v);
  const int64_t B = q.dim(0), T = q.dim(1), H = q.dim(2);
  check(k.dim(1) == T, "keys for ", k.dim(1), " positions, queries for ", T);
  expect("out", out, q.shape);
  expect("dout", dout, q.shape);
  expect("lse", lse, {B, H, T});
  expect("scratch", scratch, {B, H, T});
  expect("dq", dq, q.shape);
  expect("dk", dk, k.shape);
  expect("dv", dv, v.shape);
  with_scalar(q.dtype, [&]<class Compute>(Compute) {
    backward_delta<Compute>(out, dout, scratch);
    const BackwardInputs<Compute> in{q, k, v, dout, lse, scratch};
    backward_queries<Compute>(in, dq);
    backward_keys_and_values<Compute>(in, dk, dv);
  });
}

void ReferenceOps::attention_decode(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                                    const Tensor& out) {
  expect_heads(q, k, v);
  check(q.dim(1) == 1, "decode takes one token, not ", q.dim(1));
  check(length >= 1 && length <= k.dim(1), "length ", length, " of a cache of ", k.dim(1));
  expect("out", out, q.shape);
  with_scalar(q.dtype, [&]<class Compute>(Compute) {
    for (int64_t b = 0; b < q.dim(0); ++b)
      for (int64_t h = 0; h < q.dim(2); ++h)
        attend<Compute>(q, k, v, b, 0, h, length, out);
  });
}

}  // namespace hearth::reference
