// Token and position embeddings.  Backward: a task owns a range of channels and adds the rows in their order,
// so no two tasks write one element.
#include <algorithm>
#include <cstring>

#include "device/cpu/cpu_ops.h"
#include "device/cpu/dropout_rows.h"

namespace hearth::cpu {

namespace {

constexpr int64_t row_block = 64;
constexpr int64_t channel_block = 64;

// The indices of N rows, contiguous.
const int32_t* expect_indices(std::string_view name, const Tensor& indices, int64_t N) {
  expect(name, indices, {N});
  return indices.as<int32_t>();
}

void expect_positions(const int32_t* positions, int64_t N, const Tensor& table) {
  for (int64_t r = 0; r < N; ++r)
    check(positions[r] >= 0 && positions[r] < table.dim(0), "position ", positions[r], " in a table of ",
          table.shape);
}

// x = factor (x + table row); factor and row may be null.
template <class T>
[[gnu::always_inline]] inline void position_row(T* x, const T* row, const float* factor, int64_t C) {
  if (row && factor) {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      x[c] = rounded<T>(factor[c] * (to_float(x[c]) + to_float(row[c])));
  } else if (row) {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      x[c] = rounded<T>(to_float(x[c]) + to_float(row[c]));
  } else if (factor) {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      x[c] = rounded<T>(factor[c] * to_float(x[c]));
  }
}

// dtable[index[r] - start, begin..end) += d[r, begin..end), r = 0, 1, ...; indices outside are skipped.
template <class T>
[[gnu::always_inline]] inline void scatter_channels(const int32_t* index, Rows<T> d, int64_t N, int64_t start,
                                                    Rows<float> dtable, int64_t table_rows, int64_t begin,
                                                    int64_t end) {
  for (int64_t r = 0; r < N; ++r) {
    const int64_t row = index[r] - start;
    if (row < 0 || row >= table_rows) continue;
    const T* from = d[r];
    float* to = dtable[row];
#pragma omp simd
    for (int64_t c = begin; c < end; ++c)
      to[c] += to_float(from[c]);
  }
}

}  // namespace

void CpuOps::embed_tokens(const Tensor& tokens, const Tensor& table, int64_t vocab_start, const Tensor& out) {
  const int64_t N = out.dim(0), C = out.dim(1), V = table.dim(0);
  const int32_t* ids = expect_indices("tokens", tokens, N);
  expect("table", table, {V, C});
  expect("out", out, {N, C});
  with_compute_type(out.dtype, [&]<class T>(T) {
    const Rows<T> from(table), to(out);
    parallel(N, row_block, static_cast<double>(C) * 0.1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = ids[r] - vocab_start;
        const auto bytes = static_cast<size_t>(C) * sizeof(T);
        if (row >= 0 && row < V)
          std::memcpy(to[r], from[row], bytes);
        else
          std::memset(static_cast<void*>(to[r]), 0, bytes);
      }
    });
  });
}

void CpuOps::scatter_rows(const int32_t* index, const Tensor& d, int64_t start, const Tensor& dtable) {
  const int64_t N = d.dim(0), C = d.dim(1), table_rows = dtable.dim(0);
  with_compute_type(d.dtype, [&]<class T>(T) {
    const Rows<T> from(d);
    const Rows<float> to(dtable);
    parallel(C, channel_block, static_cast<double>(N) * 0.1, [&](int64_t begin, int64_t end) {
      simd(
          isa_, [=](auto) __attribute__((always_inline)) {
            scatter_channels(index, from, N, start, to, table_rows, begin, end);
          });
    });
  });
}

void CpuOps::embed_tokens_backward(const Tensor& tokens, const Tensor& d, int64_t vocab_start,
                                   const Tensor& dtable) {
  const int64_t N = d.dim(0), C = d.dim(1);
  const int32_t* ids = expect_indices("tokens", tokens, N);
  expect("d", d, {N, C});
  expect("dtable", dtable, {dtable.dim(0), C});
  scatter_rows(ids, d, vocab_start, dtable);
}

void CpuOps::embed_positions(const Tensor& x, const Tensor& positions, const Tensor& table,
                             const Dropout& dropout) {
  const int64_t N = x.dim(0), C = x.dim(1);
  expect("x", x, {N, C});
  const int32_t* index = nullptr;
  if (table) {
    index = expect_indices("positions", positions, N);
    expect("table", table, {table.dim(0), C});
    expect_positions(index, N, table);
  }
  const DropoutRows mask(dropout, step_, C);
  if (!table && !mask.active) return;
  with_compute_type(x.dtype, [&]<class T>(T) {
    const Rows<T> rows(x), from = table ? Rows<T>(table) : Rows<T>();
    parallel(N, row_block, static_cast<double>(C) * 0.2, [&](int64_t begin, int64_t end) {
      float* factor = thread_scratch(C);
      simd(
          isa_, [=](auto) __attribute__((always_inline)) {
            for (int64_t r = begin; r < end; ++r) {
              if (mask.active) mask.factors(r, factor);
              position_row<T>(rows[r], from ? from[index[r]] : nullptr, mask.active ? factor : nullptr, C);
            }
          });
    });
  });
}

void CpuOps::embed_positions_backward(const Tensor& d, const Tensor& positions, const Dropout& dropout,
                                      const Tensor& dtable) {
  const int64_t N = d.dim(0), C = d.dim(1);
  expect("d", d, {N, C});
  if (dropout.probability > 0) embed_positions(d, {}, {}, dropout);
  if (!dtable) return;
  const int32_t* index = expect_indices("positions", positions, N);
  expect("dtable", dtable, {dtable.dim(0), C});
  expect_positions(index, N, dtable);
  scatter_rows(index, d, 0, dtable);
}

}  // namespace hearth::cpu
