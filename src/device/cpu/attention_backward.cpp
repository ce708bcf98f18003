// The gradient of causal attention (Dao et al. 2022).  With S = scale q k^T, P = exp(S - lse), dP = dout v^T,
// delta = rowsum(dout out) and dS = P (dP - delta):
//   dv = P^T dout,  dk = scale dS^T q,  dq = scale dS k.
// One task owns a key-value head of one sequence with all query heads that share it, so sums need no
// synchronisation and have one order.
#include <cmath>

#include "device/cpu/attention_tiles.h"
#include "device/cpu/cpu_ops.h"
#include "device/cpu/math.h"
#include "device/cpu/matmul.h"

namespace hearth::cpu {

namespace {

// Scratch of one task.
struct Tiles {
  float* q;     // [tile, Dp] scaled queries
  float* dout;  // [tile, Dp]
  float* k;     // [tile, Dp]
  float* k_t;   // [D, tile]
  float* v_t;   // [D, tile]
  float* p;     // [tile, tile]
  float* ds;    // [tile, tile]
  float* dk;    // [tile, Dp] of this key tile
  float* dv;    // [tile, Dp]
  float* dq;    // [group, T rounded up, Dp] of all query tiles

  static int64_t floats(int64_t Dp, int64_t group, int64_t T) {
    return 7 * tile * Dp + 2 * tile * tile + group * round_up(T, tile) * Dp;
  }
  Tiles(float* base, int64_t Dp)
      : q(base),
        dout(q + tile * Dp),
        k(dout + tile * Dp),
        k_t(k + tile * Dp),
        v_t(k_t + tile * Dp),
        p(v_t + tile * Dp),
        ds(p + tile * tile),
        dk(ds + tile * tile),
        dv(dk + tile * Dp),
        dq(dv + tile * Dp) {}
};

// p: scores in, exp(score - lse) out, 0 beyond `visible`; ds: dP in, P (dP - delta) out.
[[gnu::always_inline]] inline void weights_row(float* p, float* ds, int64_t visible, int64_t padded,
                                               float lse, float delta) {
  const int32_t seen = static_cast<int32_t>(visible), count = static_cast<int32_t>(padded);
#pragma omp simd
  for (int32_t j = 0; j < count; ++j) {  // 32 bits wide, like what it is compared beside
    const float weight = j < seen ? exp_fast(p[j] - lse) : 0.0f;
    p[j] = weight;
    ds[j] = weight * (ds[j] - delta);
  }
}

// Rows [r0, r0 + rows) of p and ds against the first `keys` keys; row r sees keys up to r + offset.
void make_weights(Isa isa, const Tiles& t, int64_t r0, int64_t rows, int64_t keys, int64_t offset,
                  const float* lse, const float* delta, int64_t D, int64_t Dp) {
  float* p = t.p + r0 * tile;
  float* ds = t.ds + r0 * tile;
  matmul(isa, rows, keys, D, {t.q + r0 * Dp, Dp, 1}, t.k_t, tile, p, tile, false);
  matmul(isa, rows, keys, D, {t.dout + r0 * Dp, Dp, 1}, t.v_t, tile, ds, tile, false);
  simd(
      isa, [=](auto) __attribute__((always_inline)) {
        for (int64_t r = 0; r < rows; ++r)
          weights_row(p + r * tile, ds + r * tile, std::min(keys, r0 + r + offset + 1), keys, lse[r0 + r],
                      delta[r0 + r]);
      });
}

// A tile of queries below the diagonal: every query sees every key.
void full_tile(Isa isa, const Tiles& t, int64_t rows, const float* lse, const float* delta, float* dq,
               int64_t D, int64_t Dp) {
  make_weights(isa, t, 0, rows, tile, tile, lse, delta, D, Dp);
  matmul(isa, tile, Dp, rows, {t.p, 1, tile}, t.dout, Dp, t.dv, Dp, true);
  matmul(isa, tile, Dp, rows, {t.ds, 1, tile}, t.q, Dp, t.dk, Dp, true);
  matmul(isa, rows, Dp, tile, {t.ds, tile, 1}, t.k, Dp, dq, Dp, true);
}

// The tile on the diagonal, in steps that skip what no query sees.
void diagonal_tile(Isa isa, const Tiles& t, int64_t rows, const float* lse, const float* delta, float* dq,
                   int64_t D, int64_t Dp) {
  for (int64_t r = 0; r < rows; r += diagonal_step) {
    const int64_t count = std::min(diagonal_step, rows - r);
    make_weights(isa, t, r, count, r + diagonal_step, 0, lse, delta, D, Dp);
    matmul(isa, count, Dp, r + count, {t.ds + r * tile, tile, 1}, t.k, Dp, dq + r * Dp, Dp, true);
  }
  for (int64_t c = 0; c < rows; c += diagonal_step) {
    const int64_t count = std::min(diagonal_step, rows - c);
    const int64_t at = c * tile + c;
    matmul(isa, count, Dp, rows - c, {t.p + at, 1, tile}, t.dout + c * Dp, Dp, t.dv + c * Dp, Dp, true);
    matmul(isa, count, Dp, rows - c, {t.ds + at, 1, tile}, t.q + c * Dp, Dp, t.dk + c * Dp, Dp, true);
  }
}

// delta[r] = dout[r] . out[r]
template <class T>
[[gnu::always_inline]] inline void row_dots(Head<T> out, Head<T> dout, int64_t length, int64_t D,
                                            float* delta) {
  for (int64_t r = 0; r < length; ++r) {
    const T* a = out.data + r * out.stride;
    const T* b = dout.data + r * dout.stride;
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t d = 0; d < D; ++d)
      dot += to_float(a[d]) * to_float(b[d]);
    delta[r] = dot;
  }
}

// The operands of one task.
template <class T>
struct KeyValueHead {
  const Tensor &q, &k, &v, &out, &dout, &lse, &delta, &dq, &dk, &dv;
  int64_t b, h_kv, group;

  float* row(const Tensor& x, int64_t h) const { return x.as<float>() + b * x.stride[0] + h * x.stride[1]; }

  void run(Isa isa) const {
    const int64_t length = q.dim(1), D = q.dim(3), Dp = round_up(D, 16), padded = round_up(length, tile);
    const Tiles t(thread_scratch(Tiles::floats(Dp, group, length)), Dp);
    std::fill(t.dq, t.dq + group * padded * Dp, 0.0f);
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; ++h) {
      const Head<T> o(out, b, h), d(dout, b, h);
      float* dots = row(delta, h);
      simd(
          isa, [=](auto) __attribute__((always_inline)) { row_dots(o, d, length, D, dots); });
    }
    for (int64_t j = 0; j < length; j += tile)
      key_tile(isa, t, j, D, Dp, padded);
    const float scale = 1.0f / std::sqrt(static_cast<float>(D));
    for (int64_t g = 0; g < group; ++g) {
      const Head<T> target(dq, b, h_kv * group + g);
      const float* from = t.dq + g * padded * Dp;
      simd(
          isa, [=](auto)
                   __attribute__((always_inline)) { store_rows(target, 0, length, D, Dp, scale, from); });
    }
  }

  void key_tile(Isa isa, const Tiles& t, int64_t j, int64_t D, int64_t Dp, int64_t padded) const {
    const int64_t length = q.dim(1), keys = std::min(tile, length - j);
    const float scale = 1.0f / std::sqrt(static_cast<float>(D));
    const Head<T> key(k, b, h_kv), value(v, b, h_kv), d_key(dk, b, h_kv), d_value(dv, b, h_kv);
    simd(
        isa, [=](auto tag) __attribute__((always_inline)) {
          load_rows(key, j, keys, D, Dp, 1.0f, t.k);
          load_transposed<decltype(tag)::width>(key, j, keys, D, t.k_t);
          load_transposed<decltype(tag)::width>(value, j, keys, D, t.v_t);
          std::fill(t.dk, t.dk + 2 * tile * Dp, 0.0f);  // and dv
        });
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; ++h) {
      const Head<T> query(q, b, h), d_out(dout, b, h);
      for (int64_t i = j; i < length; i += tile) {
        const int64_t rows = std::min(tile, length - i);
        simd(
            isa, [=](auto) __attribute__((always_inline)) {
              load_rows(query, i, rows, D, Dp, scale, t.q);
              load_rows(d_out, i, rows, D, Dp, 1.0f, t.dout);
            });
        float* dq_tile = t.dq + ((h - h_kv * group) * padded + i) * Dp;
        const auto run_tile = i == j ? diagonal_tile : full_tile;
        run_tile(isa, t, rows, row(lse, h) + i, row(delta, h) + i, dq_tile, D, Dp);
      }
    }
    simd(
        isa, [=](auto) __attribute__((always_inline)) {
          store_rows(d_key, j, keys, D, Dp, 1.0f, t.dk);
          store_rows(d_value, j, keys, D, Dp, 1.0f, t.dv);
        });
  }
};

}  // namespace

void CpuOps::attention_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                const Tensor& dout, const Tensor& lse, const Tensor& scratch,
                                const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const int64_t B = q.dim(0), T = q.dim(1), H = q.dim(2), D = q.dim(3), H_kv = k.dim(2);
  check(H_kv > 0 && H % H_kv == 0, H, " heads cannot share ", H_kv);
  expect("k", k, {B, T, H_kv, D});
  expect("v", v, k.shape);
  expect("out", out, q.shape);
  expect("dout", dout, q.shape);
  expect("lse", lse, {B, H, T});
  expect("scratch", scratch, {B, H, T});
  expect("dq", dq, q.shape);
  expect("dk", dk, k.shape);
  expect("dv", dv, v.shape);
  with_compute_type(q.dtype, [&]<class Compute>(Compute) {
    parallel(B * H_kv, 1, 5e3, [&](int64_t task, int64_t) {
      const KeyValueHead<Compute> head{q,  k,  v,  out,         dout,        lse,     scratch,
                                       dq, dk, dv, task / H_kv, task % H_kv, H / H_kv};
      head.run(isa_);
    });
  });
}

}  // namespace hearth::cpu
