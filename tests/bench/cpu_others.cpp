// Everything but the linear layers.
#include "cpu_ops.h"

namespace hearth::bench {

namespace {

double bytes_of(std::initializer_list<Tensor> tensors) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors)
    bytes += t.bytes();
  return static_cast<double>(bytes);
}

Dropout dropout_of(const StepShape& s, double probability) {
  Dropout d;
  d.probability = probability;
  d.time = s.time;
  return d;
}

void attention(benchmark::State& state, bool backward) {
  const StepShape& s = shape_of(state.range(0));
  const int64_t B = s.batch, T = s.time, H = s.heads, D = s.head_size(), C = s.channels;
  Workbench w(type_of(state.range(1)));
  const Tensor qkv = w.activation({B * T, 3 * C}), d_qkv = w.activation({B * T, 3 * C});
  const auto heads = [&](const Tensor& t, int64_t i) { return t.heads(B, i * C, H, D); };
  const Tensor out = w.activation({B * T, C}).heads(B, 0, H, D);
  const Tensor d_out = w.activation({B * T, C}).heads(B, 0, H, D);
  const Tensor lse = w.master({B, H, T}), delta = w.master({B, H, T});
  w.ops().attention_forward(heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), out, lse);
  for (auto _ : state) {
    if (backward)
      w.ops().attention_backward(heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), out, d_out, lse, delta,
                                 heads(d_qkv, 0), heads(d_qkv, 1), heads(d_qkv, 2));
    else
      w.ops().attention_forward(heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), out, lse);
  }
  count_flops(state, (backward ? 5.0 : 2.0) * static_cast<double>(B * H * T * (T + 1) * D));  // causal
}
BENCHMARK_CAPTURE(attention, forward, false)->Apply(both_shapes);
BENCHMARK_CAPTURE(attention, backward, true)->Apply(both_shapes);

void residual_norm_forward(benchmark::State& state, double probability) {
  const StepShape& s = shape_of(state.range(0));
  const int64_t N = s.rows(), C = s.channels;
  Workbench w(type_of(state.range(1)));
  Ops::ResidualNorm p;
  p.residual = w.activation({N, C});
  p.branch = w.activation({N, C});
  p.branch_bias = w.activation({C});
  p.dropout = dropout_of(s, probability);
  p.residual_out = w.activation({N, C});
  p.weight = w.activation({C});
  p.bias = w.activation({C});
  p.normed = w.activation({N, C});
  p.mean = w.master({N});
  p.rstd = w.master({N});
  for (auto _ : state)
    w.ops().residual_norm_forward(p);
  count_bytes(state, bytes_of({p.residual, p.branch, p.residual_out, p.normed}));
}
BENCHMARK_CAPTURE(residual_norm_forward, plain, 0.0)->Apply(both_shapes);
BENCHMARK_CAPTURE(residual_norm_forward, dropout, 0.2)->Apply(both_shapes);

void residual_norm_backward(benchmark::State& state, double probability) {
  const StepShape& s = shape_of(state.range(0));
  const int64_t N = s.rows(), C = s.channels;
  Workbench w(type_of(state.range(1)));
  Ops::ResidualNormBackward p;
  p.d_normed = w.activation({N, C});
  p.d_residual = w.activation({N, C});
  p.accumulate = false;
  p.x = w.activation({N, C});
  p.mean = w.master({N});
  p.rstd = w.master({N});
  p.weight = w.activation({C});
  p.d_weight = w.master({C});
  p.d_bias = w.master({C});
  p.d_branch = w.activation({N, C});
  p.d_branch_bias = w.master({C});
  p.dropout = dropout_of(s, probability);
  for (auto _ : state)
    w.ops().residual_norm_backward(p);
  count_bytes(state, bytes_of({p.d_normed, p.d_residual, p.x, p.d_branch}));
}
BENCHMARK_CAPTURE(residual_norm_backward, plain, 0.0)->Apply(both_shapes);
BENCHMARK_CAPTURE(residual_norm_backward, dropout, 0.2)->Apply(both_shapes);

void gelu_forward(benchmark::State& state) {
  const StepShape& s = shape_of(state.range(0));
  Workbench w(type_of(state.range(1)));
  const Tensor pre = w.activation({s.rows(), 4 * s.channels}), y = w.activation({s.rows(), 4 * s.channels});
  for (auto _ : state)
    w.ops().gelu_forward(pre, y);
  count_bytes(state, bytes_of({pre, y}));
}
BENCHMARK(gelu_forward)->Apply(both_shapes);

void embed(benchmark::State& state, bool backward) {
  const StepShape& s = shape_of(state.range(0));
  const int64_t N = s.rows(), C = s.channels;
  Workbench w(type_of(state.range(1)));
  const Tensor tokens = w.indices(N, static_cast<int32_t>(s.vocab));
  const Tensor positions = w.indices(N, static_cast<int32_t>(s.time));
  const Tensor x = w.activation({N, C}), tokens_table = w.activation({s.vocab, C});
  const Tensor positions_table = w.activation({s.time, C});
  const Tensor d_tokens = w.master({s.vocab, C}), d_positions = w.master({s.time, C});
  for (auto _ : state) {
    if (backward) {
      w.ops().embed_positions_backward(x, positions, {}, d_positions);
      w.ops().embed_tokens_backward(tokens, x, 0, d_tokens);
    } else {
      w.ops().embed_tokens(tokens, tokens_table, 0, x);
      w.ops().embed_positions(x, positions, positions_table, {});
    }
  }
  count_bytes(state, 4 * bytes_of({x}));
}
BENCHMARK_CAPTURE(embed, forward, false)->Apply(both_shapes);
BENCHMARK_CAPTURE(embed, backward, true)->Apply(both_shapes);

void cross_entropy(benchmark::State& state) {
  const StepShape& s = shape_of(state.range(0));
  const int64_t N = s.rows();
  Workbench w(type_of(state.range(1)));
  const Tensor logits = w.activation({N, s.vocab}), dlogits = w.activation({N, s.vocab});
  const Tensor targets = w.indices(N, static_cast<int32_t>(s.vocab - 63));
  const Tensor stats = w.master({3, N}), losses = w.master({N});
  const VocabShard shard{0, s.vocab - 63};
  for (auto _ : state) {
    w.ops().cross_entropy_statistics(logits, targets, shard, stats);
    w.ops().cross_entropy_finish(logits, targets, shard, stats, losses, dlogits);
  }
  count_bytes(state, 3 * bytes_of({logits}));
}
BENCHMARK(cross_entropy)->Apply(both_shapes);

// All parameters as one segment: 0.8 M and 124 M.
void adamw(benchmark::State& state) {
  Workbench w(type_of(state.range(1)));
  const int64_t count = state.range(0) == 0 ? 818'000 : 124'000'000;
  AdamWSegment segment;
  segment.master = w.master({count});
  segment.moment1 = w.master({count});
  segment.moment2 = w.make(DType::f32, {count}, 0);
  segment.grad = w.master({count});
  segment.decay = true;
  if (w.compute() == DType::bf16) segment.weight = w.activation({count});
  for (auto _ : state)
    w.ops().adamw({&segment, 1}, {});
  count_bytes(state, 2 * bytes_of({segment.master, segment.moment1, segment.moment2, segment.grad}));
}
BENCHMARK(adamw)->Apply(both_shapes);

void sum_of_squares(benchmark::State& state) {
  Workbench w(type_of(state.range(1)));
  const Tensor x = w.master({state.range(0) == 0 ? 818'000 : 124'000'000});
  const Tensor total = Tensor(w.master({2}).data, DType::f64, {1});
  for (auto _ : state)
    w.ops().sum_of_squares(x, total);
  count_bytes(state, bytes_of({x}));
}
BENCHMARK(sum_of_squares)->Apply(both_shapes);

}  // namespace

}  // namespace hearth::bench
