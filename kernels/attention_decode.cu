// Attention of one new token per row of the batch against a cache of keys and values.
//
//   out = sum_j exp(q . k[j] / sqrt(D)) v[j] / sum_j exp(q . k[j] / sqrt(D)),  j < length
//
// Memory-bound: every key and value is read once per query head (the heads that share them read them from the
// L2 cache).  A key belongs to `width` lanes, each with 8 of its elements, so a warp reads 32 / width keys at
// a time, and each such group of lanes keeps an online softmax of the keys it met: m, l and o as in
// attention.cu. At the end the groups are added in their order.
//
// Launch: one block of 4 warps per query head of a row.
// Shared memory: m | l of every group, then o: groups x 8 width floats; 5 KiB.
#include "kernels/attention.cuh"

namespace hearth::kernels {
namespace {
using namespace attention;

constexpr int keys_at_once = 4;  // of a group of lanes: loads in flight

template <int width>
struct Layout {
  static constexpr int groups = threads / width;
  static constexpr int columns = width * chunk_elements;
  static constexpr int l_at = groups * static_cast<int>(sizeof(float));
  static constexpr int o_at = 2 * l_at;
  static constexpr int shared_bytes = o_at + groups * columns * static_cast<int>(sizeof(float));
};

struct Problem {
  HeadsView<const bf16> q, k, v;
  HeadsView<bf16> out;
  int64_t length, heads, group;  // group: query heads per key head
  int head_size;
  float c;  // log2(e) / sqrt(D)
};

template <int width>
__global__ void __launch_bounds__(threads) attention_decode_kernel(const Problem p) {
  using L = Layout<width>;
  const int64_t b = blockIdx.x / p.heads, h = blockIdx.x % p.heads;
  const int group = static_cast<int>(threadIdx.x) / width;
  const int column = static_cast<int>(threadIdx.x) % width * chunk_elements;
  const bool has_columns = column < p.head_size;
  const bf16* keys = head_of(p.k, b, h / p.group) + column;
  const bf16* values = head_of(p.v, b, h / p.group) + column;

  Vector<bf16> q = {};
  if (has_columns) q = load16(head_of(p.q, b, h) + column);
  float o[chunk_elements] = {};
  float m = -infinity(), l = 0;

  for (int64_t first = 0; first < p.length; first += L::groups * keys_at_once) {
    Vector<bf16> k[keys_at_once] = {}, v[keys_at_once] = {};
    float s[keys_at_once];
#pragma unroll
    for (int i = 0; i < keys_at_once; ++i) {
      const int64_t j = first + i * L::groups + group;
      if (j < p.length && has_columns) {
        k[i] = load16(keys + j * p.k.token_stride);
        v[i] = load16(values + j * p.v.token_stride);
      }
    }
    float new_m = m;
#pragma unroll
    for (int i = 0; i < keys_at_once; ++i) {
      float sum = 0;
#pragma unroll
      for (int e = 0; e < chunk_elements; ++e)
        sum += to_float(q[e]) * to_float(k[i][e]);
      sum = group_reduce<width>(sum, Sum{});
      s[i] = first + i * L::groups + group < p.length ? sum : -infinity();
      new_m = Max{}(new_m, s[i]);
    }
    if (new_m == -infinity()) continue;  // this group has met no key
    const float shrink = ptx::ex2((m - new_m) * p.c);
    m = new_m;
    l *= shrink;
#pragma unroll
    for (int e = 0; e < chunk_elements; ++e)
      o[e] *= shrink;
#pragma unroll
    for (int i = 0; i < keys_at_once; ++i) {
      const float weight = ptx::ex2((s[i] - m) * p.c);
      l += weight;
#pragma unroll
      for (int e = 0; e < chunk_elements; ++e)
        o[e] += weight * to_float(v[i][e]);
    }
  }

  const SharedAddress shared = shared_memory();
  auto m_of = [&](int g) { return shared + static_cast<SharedAddress>(g) * 4; };
  auto l_of = [&](int g) { return shared + L::l_at + static_cast<SharedAddress>(g) * 4; };
  auto o_of = [&](int g, int c) {
    return shared + L::o_at + static_cast<SharedAddress>(g * L::columns + c) * 4;
  };
  if (column == 0) {
    shared_store(m_of(group), m);
    shared_store(l_of(group), l);
  }
#pragma unroll
  for (int e = 0; e < chunk_elements; e += 4)
    shared_store(o_of(group, column + e), float4{o[e], o[e + 1], o[e + 2], o[e + 3]});
  __syncthreads();  // the partial results of all groups are visible

  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= p.head_size) return;
  float largest = -infinity();
  for (int g = 0; g < L::groups; ++g)
    largest = Max{}(largest, shared_load<float>(m_of(g)));
  float sum = 0, weights = 0;
  for (int g = 0; g < L::groups; ++g) {
    const float weight = ptx::ex2((shared_load<float>(m_of(g)) - largest) * p.c);
    weights += weight * shared_load<float>(l_of(g));
    sum += weight * shared_load<float>(o_of(g, mine));
  }
  head_of(p.out, b, h)[mine] = ptx::cvt_bf16(sum / weights);
}

template <int width>
void launch_decode(const Problem& p, int64_t batch, cudaStream_t stream) {
  launch(attention_decode_kernel<width>, grid_of(batch * p.heads), threads, Layout<width>::shared_bytes,
         stream, p);
}

}  // namespace

void attention_decode(const AttentionShape& s, const HeadsView<const bf16>& q, const HeadsView<const bf16>& k,
                      const HeadsView<const bf16>& v, const HeadsView<bf16>& out, cudaStream_t stream) {
  if (s.batch * s.heads == 0) return;
  check(s.time > 0, "attention: decoding needs at least one key");
  check_operands(s, q, k, v, out);
  const double c = std::numbers::log2e / std::sqrt(static_cast<double>(s.head_size));
  const Problem p{q,
                  k,
                  v,
                  out,
                  s.time,
                  s.heads,
                  s.heads / s.kv_heads,
                  static_cast<int>(s.head_size),
                  static_cast<float>(c)};
  if (s.head_size <= 16) return launch_decode<2>(p, s.batch, stream);
  if (s.head_size <= 32) return launch_decode<4>(p, s.batch, stream);
  if (s.head_size <= 64) return launch_decode<8>(p, s.batch, stream);
  return launch_decode<16>(p, s.batch, stream);
}

}  // namespace hearth::kernels
