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

// Scratch of one task.  Scores are kept transposed, one column per query, so that the softmax runs down the
// columns, a vector of queries at a time, and needs no sum across a vector.
struct Tiles {
  float* q_t;      // [D, tile] transposed queries
  float* k;        // [tile, Dp] keys, scaled
  float* v;        // [tile, Dp]
  float* scores;   // [tile keys, tile queries], then their exponentials
  float* out;      // [tile, Dp] unnormalised
  float* largest;  // [tile] running maximum of each query
  float* sum;      // [tile] running sum of exponentials relative to it
  float* shrink;   // [tile] what the new maximum multiplies older sums by

  static int64_t floats(int64_t Dp) { return 4 * tile * Dp + tile * tile + 3 * tile; }
  Tiles(float* base, int64_t Dp)
      : q_t(base),
        k(q_t + tile * Dp),
        v(k + tile * Dp),
        scores(v + tile * Dp),
        out(scores + tile * tile),
        largest(out + tile * Dp),
        sum(largest + tile),
        shrink(sum + tile) {}
};

// Scores of W queries, column `query` onwards, against rows [0, keys): exponentials and running statistics.
// Rows above `query` are on the diagonal: query + i sees them up to its own.
template <int W>
[[gnu::always_inline]] inline void softmax_columns(const Tiles& t, int64_t query, int64_t keys, bool diagonal,
                                                   bool first) {
  const int64_t seen_by_all = diagonal ? std::min(keys, query + 1) : keys;
  float* s = t.scores + query;
  float m[W], total[W];
  for (int i = 0; i < W; ++i)
    m[i] = first ? -std::numeric_limits<float>::infinity() : t.largest[query + i];
  for (int64_t j = 0; j < seen_by_all; ++j) {
#pragma omp simd
    for (int i = 0; i < W; ++i)
      m[i] = s[j * tile + i] > m[i] ? s[j * tile + i] : m[i];
  }
  for (int64_t j = seen_by_all; j < keys; ++j) {
    const int32_t below = static_cast<int32_t>(j - query);
#pragma omp simd
    for (int i = 0; i < W; ++i)
      m[i] = (below <= i) & (s[j * tile + i] > m[i]) ? s[j * tile + i] : m[i];
  }
  for (int i = 0; i < W; ++i) {
    t.shrink[query + i] = first ? 0.0f : exp_fast(t.largest[query + i] - m[i]);
    total[i] = first ? 0.0f : t.sum[query + i] * t.shrink[query + i];
    t.largest[query + i] = m[i];
  }
  for (int64_t j = 0; j < seen_by_all; ++j) {
#pragma omp simd
    for (int i = 0; i < W; ++i) {
      const float p = exp_fast(s[j * tile + i] - m[i]);
      s[j * tile + i] = p;
      total[i] += p;
    }
  }
  for (int64_t j = seen_by_all; j < keys; ++j) {
    const int32_t below = static_cast<int32_t>(j - query);
#pragma omp simd
    for (int i = 0; i < W; ++i) {
      const float p = below <= i ? exp_fast(s[j * tile + i] - m[i]) : 0.0f;
      s[j * tile + i] = p;
      total[i] += p;
    }
  }
  for (int i = 0; i < W; ++i)
    t.sum[query + i] = total[i];
}

// Multiplies what older tiles accumulated.
[[gnu::always_inline]] inline void shrink_rows(const Tiles& t, int64_t rows, int64_t Dp) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t d = 0; d < Dp; ++d)
      t.out[r * Dp + d] *= t.shrink[r];
  }
}

// A tile of keys that every query sees.
void full_tile(Isa isa, const Tiles& t, int64_t rows, int64_t D, int64_t Dp, bool first) {
  const int64_t columns = round_up(rows, diagonal_step);
  matmul(isa, tile, columns, D, {t.k, Dp, 1}, t.q_t, tile, t.scores, tile, false);
  simd(
      isa, [=](auto tag) __attribute__((always_inline)) {
        constexpr int W = decltype(tag)::width;
        for (int64_t q = 0; q < columns; q += W)
          softmax_columns<W>(t, q, tile, false, first);
        if (!first) shrink_rows(t, rows, Dp);
      });
  matmul(isa, rows, Dp, tile, {t.scores, 1, tile}, t.v, Dp, t.out, Dp, !first);
}

// The tile on the diagonal, as many keys as queries, in steps that skip what no query sees.
void diagonal_tile(Isa isa, const Tiles& t, int64_t rows, int64_t D, int64_t Dp, bool first) {
  const int64_t columns = round_up(rows, diagonal_step);
  for (int64_t c = 0; c < columns; c += diagonal_step)
    matmul(isa, diagonal_step, columns - c, D, {t.k + c * Dp, Dp, 1}, t.q_t + c, tile,
           t.scores + c * tile + c, tile, false);
  simd(
      isa, [=](auto tag) __attribute__((always_inline)) {
        constexpr int W = decltype(tag)::width;
        for (int64_t q = 0; q < columns; q += W)
          softmax_columns<W>(t, q, q / diagonal_step * diagonal_step + diagonal_step, true, first);
        if (!first) shrink_rows(t, rows, Dp);
      });
  for (int64_t r = 0; r < rows; r += diagonal_step)
    matmul(isa, std::min(diagonal_step, rows - r), Dp, r + diagonal_step, {t.scores + r, 1, tile}, t.v, Dp,
           t.out + r * Dp, Dp, !first);
}

// One tile of queries of one head.
template <class T>
void forward_tile(Isa isa, Head<T> q, Head<T> k, Head<T> v, Head<T> out, float* lse, int64_t begin,
                  int64_t length, int64_t D) {
  const int64_t Dp = round_up(D, diagonal_step);
  const int64_t rows = std::min(tile, length - begin);
  const Tiles t(thread_scratch(Tiles::floats(Dp)), Dp);
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  for (int64_t j = 0; j <= begin; j += tile) {
    const int64_t keys = std::min(tile, length - j), padded = round_up(keys, diagonal_step);
    simd(
        isa, [=](auto tag) __attribute__((always_inline)) {
          if (j == 0) load_transposed<decltype(tag)::width>(q, begin, rows, D, t.q_t);
          load_rows(k, j, keys, D, Dp, scale, t.k);
          load_rows(v, j, keys, D, Dp, 1.0f, t.v);
          std::fill(t.k + keys * Dp, t.k + padded * Dp, 0.0f);
          std::fill(t.v + keys * Dp, t.v + padded * Dp, 0.0f);
        });
    if (j < begin)
      full_tile(isa, t, rows, D, Dp, j == 0);
    else
      diagonal_tile(isa, t, rows, D, Dp, j == 0);
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
