// Causal attention, forward and decoding, with the online softmax (Milakov and Gimelshein 2018; Dao et al.
// 2022): tiles of 64 queries and 64 keys in the scratch of one thread; scores never leave the cache.
#include <cmath>
#include <limits>

#include "device/cpu/attention_tiles.h"
#include "device/cpu/cpu_ops.h"
#include "device/cpu/math.h"
#include "device/cpu/matmul.h"

namespace hearth::cpu {

namespace {

void expect_heads(const Tensor& q, const Tensor& k, const Tensor& v) {
  check(q.shape.rank() == 4, "q is ", q.shape, ", expected [B, T, H, D]");
  check(k.shape.rank() == 4, "k is ", k.shape, ", expected [B, T, Hkv, D]");
  expect("q", q, q.shape);
  expect("k", k, {q.dim(0), k.dim(1), k.dim(2), q.dim(3)});
  expect("v", v, k.shape);
  check(k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0, q.dim(2), " heads cannot share ", k.dim(2));
}

// Scratch of one task.
struct Tiles {
  float* q;        // [tile, Dp] scaled queries
  float* k;        // [D, tile] transposed keys
  float* v;        // [tile, Dp]
  float* scores;   // [tile, tile], then their exponentials
  float* out;      // [tile, Dp] unnormalised
  float* largest;  // [tile] running maximum of a row
  float* sum;      // [tile] running sum of exponentials relative to it

  static int64_t floats(int64_t Dp) { return 4 * tile * Dp + tile * tile + 2 * tile; }
  Tiles(float* base, int64_t Dp)
      : q(base),
        k(q + tile * Dp),
        v(k + tile * Dp),
        scores(v + tile * Dp),
        out(scores + tile * tile),
        largest(out + tile * Dp),
        sum(largest + tile) {}
};

// One row of scores against `visible` keys, padded with zeros to `padded`: exponentials, running statistics,
// and the rescaling of what was accumulated.
[[gnu::always_inline]] inline void softmax_row(float* s, int64_t visible, int64_t padded, float* out,
                                               int64_t Dp, bool first, float& largest, float& sum) {
  float m = first ? -std::numeric_limits<float>::infinity() : largest;
#pragma omp simd reduction(max : m)
  for (int64_t j = 0; j < visible; ++j)
    m = std::max(m, s[j]);
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < padded; ++j) {
    const float p = j < visible ? exp_fast(s[j] - m) : 0.0f;
    s[j] = p;
    total += p;
  }
  if (!first) {
    const float shrink = std::exp(largest - m);
    total += sum * shrink;
#pragma omp simd
    for (int64_t d = 0; d < Dp; ++d)
      out[d] *= shrink;
  }
  largest = m;
  sum = total;
}

// Rows [r0, r0 + rows) of the query tile against the first `keys` (a multiple of diagonal_step) keys of the
// key tile; row r sees keys up to r + offset.
void attend_rows(Isa isa, const Tiles& t, int64_t r0, int64_t rows, int64_t keys, int64_t offset, int64_t D,
                 int64_t Dp, bool first) {
  float* scores = t.scores + r0 * tile;
  float* out = t.out + r0 * Dp;
  float* largest = t.largest + r0;
  float* sum = t.sum + r0;
  matmul(isa, rows, keys, D, {t.q + r0 * Dp, Dp, 1}, t.k, tile, scores, tile, false);
  simd(
      isa, [=](auto) __attribute__((always_inline)) {
        for (int64_t r = 0; r < rows; ++r)
          softmax_row(scores + r * tile, std::min(keys, r0 + r + offset + 1), keys, out + r * Dp, Dp, first,
                      largest[r], sum[r]);
      });
  matmul(isa, rows, Dp, keys, {scores, tile, 1}, t.v, Dp, out, Dp, !first);
}

// One tile of queries of one head.
template <class T>
void forward_tile(Isa isa, Head<T> q, Head<T> k, Head<T> v, Head<T> out, float* lse, int64_t begin,
                  int64_t length, int64_t D) {
  const int64_t Dp = round_up(D, 16);
  const int64_t rows = std::min(tile, length - begin);
  const Tiles t(thread_scratch(Tiles::floats(Dp)), Dp);
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  simd(
      isa, [=](auto) __attribute__((always_inline)) { load_rows(q, begin, rows, D, Dp, scale, t.q); });
  for (int64_t j = 0; j <= begin; j += tile) {
    const int64_t keys = std::min(tile, length - j);
    simd(
        isa, [=](auto) __attribute__((always_inline)) {
          load_transposed(k, j, keys, D, t.k);
          load_rows(v, j, keys, D, Dp, 1.0f, t.v);
          std::fill(t.v + keys * Dp, t.v + round_up(keys, diagonal_step) * Dp, 0.0f);
        });
    if (j < begin) {
      attend_rows(isa, t, 0, rows, tile, tile, D, Dp, j == 0);
      continue;
    }
    for (int64_t r = 0; r < rows; r += diagonal_step)
      attend_rows(isa, t, r, std::min(diagonal_step, rows - r), r + diagonal_step, 0, D, Dp, j == 0);
  }
  for (int64_t r = 0; r < rows; ++r)
    lse[begin + r] = t.largest[r] + std::log(t.sum[r]);
  simd(
      isa, [=](auto) __attribute__((always_inline)) {
        for (int64_t r = 0; r < rows; ++r)
          store_rows(out, begin + r, 1, D, Dp, 1.0f / t.sum[r], t.out + r * Dp);
      });
}

// One query against `length` keys, one after the other.
template <class T>
[[gnu::always_inline]] inline void decode_head(const T* q, Head<T> k, Head<T> v, int64_t length, int64_t D,
                                               T* out, float* scores, float* sum) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < length; ++j) {
    const T* key = k.data + j * k.stride;
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t d = 0; d < D; ++d)
      dot += to_float(q[d]) * to_float(key[d]);
    scores[j] = dot * scale;
    largest = std::max(largest, scores[j]);
  }
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < length; ++j) {
    scores[j] = exp_fast(scores[j] - largest);
    total += scores[j];
  }
  std::fill(sum, sum + D, 0.0f);
  for (int64_t j = 0; j < length; ++j) {
    const T* value = v.data + j * v.stride;
    const float p = scores[j];
#pragma omp simd
    for (int64_t d = 0; d < D; ++d)
      sum[d] += p * to_float(value[d]);
  }
#pragma omp simd
  for (int64_t d = 0; d < D; ++d)
    out[d] = rounded<T>(sum[d] / total);
}

}  // namespace

void CpuOps::attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                               const Tensor& lse) {
  expect_heads(q, k, v);
  const int64_t B = q.dim(0), T = q.dim(1), H = q.dim(2), D = q.dim(3), group = H / k.dim(2);
  check(k.dim(1) == T, "keys for ", k.dim(1), " positions, queries for ", T);
  expect("out", out, q.shape);
  expect("lse", lse, {B, H, T});
  const int64_t tiles = (T + tile - 1) / tile;
  with_compute_type(q.dtype, [&]<class Compute>(Compute) {
    parallel(B * H * tiles, 1, 2e3, [&](int64_t task, int64_t) {
      // The tiles with the most keys first.
      const int64_t b = task % (B * H) / H, h = task % H, i = tiles - 1 - task / (B * H);
      float* lse_row = lse.as<float>() + b * lse.stride[0] + h * lse.stride[1];
      forward_tile<Compute>(isa_, Head<Compute>(q, b, h), Head<Compute>(k, b, h / group),
                            Head<Compute>(v, b, h / group), Head<Compute>(out, b, h), lse_row, i * tile, T,
                            D);
    });
  });
}

void CpuOps::attention_decode(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                              const Tensor& out) {
  expect_heads(q, k, v);
  const int64_t B = q.dim(0), H = q.dim(2), D = q.dim(3), group = H / k.dim(2);
  check(q.dim(1) == 1, "decode takes one token, not ", q.dim(1));
  check(length >= 1 && length <= k.dim(1), "length ", length, " of a cache of ", k.dim(1));
  expect("out", out, q.shape);
  with_compute_type(q.dtype, [&]<class Compute>(Compute) {
    parallel(B * H, 1, static_cast<double>(length * D) * 0.2, [&](int64_t task, int64_t) {
      const int64_t b = task / H, h = task % H;
      const Head<Compute> query(q, b, h), keys(k, b, h / group), values(v, b, h / group), result(out, b, h);
      float* scores = thread_scratch(length + D);
      simd(
          isa_, [=](auto) __attribute__((always_inline)) {
            decode_head(query.data, keys, values, length, D, result.data, scores, scores + length);
          });
    });
  });
}

}  // namespace hearth::cpu
