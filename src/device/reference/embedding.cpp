// Token and position embeddings.
#include "device/dropout.h"
#include "device/reference/reference_ops.h"
#include "device/reference/view.h"

namespace hearth::reference {

// out[r] = table[tokens[r] - vocab_start], or 0 where the table does not have the token
template <class Compute>
static void gather_rows(const int32_t* tokens, View<Compute> table, int64_t vocab_start, View<Compute> out) {
  for (int64_t r = 0; r < out.dim(0); ++r) {
    const int64_t row = tokens[r] - vocab_start;
    const bool here = row >= 0 && row < table.dim(0);
    for (int64_t c = 0; c < out.dim(1); ++c)
      out(r, c) = here ? table(row, c) : 0.0;
  }
}

// dtable[indices[r] - start] += d[r], for r = 0, 1, ...; indices outside the table are skipped
template <class Compute>
static void scatter_rows(const int32_t* indices, View<Compute> d, int64_t start,
                         View<Master<Compute>> dtable) {
  for (int64_t r = 0; r < d.dim(0); ++r) {
    const int64_t row = indices[r] - start;
    if (row < 0 || row >= dtable.dim(0)) continue;
    for (int64_t c = 0; c < d.dim(1); ++c)
      dtable(row, c) += d(r, c);
  }
}

// x = dropout(x + table[positions])
template <class Compute>
static void add_positions(View<Compute> x, const int32_t* positions, View<Compute> table,
                          const DropoutMask& mask) {
  for (int64_t r = 0; r < x.dim(0); ++r)
    for (int64_t c = 0; c < x.dim(1); ++c)
      x(r, c) = mask.factor(r, c) * (x(r, c) + (table ? table(positions[r], c) : 0.0));
}

// d = mask applied to d
template <class Compute>
static void apply_mask(View<Compute> d, const DropoutMask& mask) {
  for (int64_t r = 0; r < d.dim(0); ++r)
    for (int64_t c = 0; c < d.dim(1); ++c)
      d(r, c) *= mask.factor(r, c);
}

// The indices of N rows, contiguous.
static const int32_t* expect_indices(std::string_view name, const Tensor& indices, int64_t N) {
  expect(name, indices, {N});
  return indices.as<int32_t>();
}

static void expect_positions(const int32_t* positions, int64_t N, const Tensor& table) {
  for (int64_t r = 0; r < N; ++r)
    check(positions[r] >= 0 && positions[r] < table.dim(0), "position ", positions[r], " in a table of ",
          table.shape);
}

void ReferenceOps::embed_tokens(const Tensor& tokens, const Tensor& table, int64_t vocab_start,
                                const Tensor& out) {
  const int64_t N = out.dim(0), C = out.dim(1), V = table.dim(0);
  const int32_t* ids = expect_indices("tokens", tokens, N);
  expect("table", table, {V, C});
  expect("out", out, {N, C});
  with_scalar(out.dtype, [&]<class Compute>(Compute) { gather_rows<Compute>(ids, table, vocab_start, out); });
}

void ReferenceOps::embed_tokens_backward(const Tensor& tokens, const Tensor& d, int64_t vocab_start,
                                         const Tensor& dtable) {
  const int64_t N = d.dim(0), C = d.dim(1), V = dtable.dim(0);
  const int32_t* ids = expect_indices("tokens", tokens, N);
  expect("d", d, {N, C});
  expect("dtable", dtable, {V, C});
  with_scalar(d.dtype, [&]<class Compute>(Compute) { scatter_rows<Compute>(ids, d, vocab_start, dtable); });
}

void ReferenceOps::embed_positions(const Tensor& x, const Tensor& positions, const Tensor& table,
                                   const Dropout& dropout) {
  const int64_t N = x.dim(0), C = x.dim(1);
  expect("x", x, {N, C});
  const int32_t* index = nullptr;
  if (table) {
    index = expect_indices("positions", positions, N);
    expect("table", table, {table.dim(0), C});
    expect_positions(index, N, table);
  }
  const DropoutMask mask(dropout, step_, C);
  with_scalar(x.dtype, [&]<class Compute>(Compute) { add_positions<Compute>(x, index, table, mask); });
}

void ReferenceOps::embed_positions_backward(const Tensor& d, const Tensor& positions, const Dropout& dropout,
                                            const Tensor& dtable) {
  const int64_t N = d.dim(0), C = d.dim(1);
  expect("d", d, {N, C});
  const int32_t* index = nullptr;
  if (dtable) {
    index = expect_indices("positions", positions, N);
    expect("dtable", dtable, {dtable.dim(0), C});
    expect_positions(index, N, dtable);
  }
  const DropoutMask mask(dropout, step_, C);
  with_scalar(d.dtype, [&]<class Compute>(Compute) {
    if (mask.active()) apply_mask<Compute>(d, mask);
    if (dtable) scatter_rows<Compute>(index, d, 0, dtable);
  });
}

}  // namespace hearth::reference
