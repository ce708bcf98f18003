// Operations on rows of activations: residual_norm, embeddings, cross-entropy.
#include "bench/cases.h"

namespace hearth::bench {

namespace {

const std::vector<Cut> some_rows = {{0, 4}};

std::string rows_shape(int64_t rows, int64_t columns) {
  return text(rows, " x ", columns);
}

Case norm_forward(const StepShape& s) {
  const int64_t N = s.tokens(), C = s.model.channels;
  Case c{.name = "residual_norm forward", .shape = rows_shape(N, C)};
  c.times = static_cast<double>(2 * s.model.layers + 1);
  const int residual = c.input("residual", s.compute(), {N, C}, normal(), some_rows);
  const int branch = c.input("branch", s.compute(), {N, C}, normal(), some_rows);
  const int branch_bias = c.input("branch_bias", s.compute(), {C});
  const int residual_out = c.output("residual_out", s.compute(), {N, C}, some_rows);
  const int weight = c.input("weight", s.compute(), {C}, normal(0.1, 1));
  const int bias = c.input("bias", s.compute(), {C}, normal(0.1));
  const int normed = c.output("normed", s.compute(), {N, C}, some_rows);
  const int mean = c.output("mean", DType::f32, {N}, some_rows);
  const int rstd = c.output("rstd", DType::f32, {N}, some_rows);
  c.run = [=](Ops& ops, const Tensors& t) {
    Ops::ResidualNorm p;
    p.residual = t[residual];
    p.branch = t[branch];
    p.branch_bias = t[branch_bias];
    p.residual_out = t[residual_out];
    p.weight = t[weight];
    p.bias = t[bias];
    p.normed = t[normed];
    p.mean = t[mean];
    p.rstd = t[rstd];
    ops.residual_norm_forward(p);
  };
  return c;
}

// Without cuts: the gradients of the parameters are sums over all rows.
Case norm_backward(const StepShape& s) {
  const int64_t N = s.tokens(), C = s.model.channels;
  Case c{.name = "residual_norm backward", .shape = rows_shape(N, C)};
  c.times = static_cast<double>(2 * s.model.layers + 1);
  const int d_normed = c.input("d_normed", s.compute(), {N, C});
  const int d_residual = c.inout("d_residual", s.compute(), {N, C});
  const int x = c.input("x", s.compute(), {N, C});
  const int mean = c.input("mean", DType::f32, {N}, normal(0.1));
  const int rstd = c.input("rstd", DType::f32, {N}, positive(0.1, 1));
  const int weight = c.input("weight", s.compute(), {C}, normal(0.1, 1));
  const int d_weight = c.inout("d_weight", DType::f32, {C});
  const int d_bias = c.inout("d_bias", DType::f32, {C});
  const int d_branch_bias = c.inout("d_branch_bias", DType::f32, {C});
  // No dropout: d_branch is d_residual itself.
  c.run = [=](Ops& ops, const Tensors& t) {
    Ops::ResidualNormBackward p;
    p.d_normed = t[d_normed];
    p.d_residual = t[d_residual];
    p.x = t[x];
    p.mean = t[mean];
    p.rstd = t[rstd];
    p.weight = t[weight];
    p.d_weight = t[d_weight];
    p.d_bias = t[d_bias];
    p.d_branch = t[d_residual];
    p.d_branch_bias = t[d_branch_bias];
    ops.residual_norm_backward(p);
  };
  return c;
}

Case norm_again(const StepShape& s) {
  const int64_t N = s.tokens(), C = s.model.channels;
  Case c{.name = "norm_apply (recomputation)", .shape = rows_shape(N, C)};
  const int x = c.input("x", s.compute(), {N, C}, normal(), some_rows);
  const int mean = c.input("mean", DType::f32, {N}, normal(0.1), some_rows);
  const int rstd = c.input("rstd", DType::f32, {N}, positive(0.1, 1), some_rows);
  const int weight = c.input("weight", s.compute(), {C}, normal(0.1, 1));
  const int bias = c.input("bias", s.compute(), {C}, normal(0.1));
  const int normed = c.output("normed", s.compute(), {N, C}, some_rows);
  c.run = [=](Ops& ops, const Tensors& t) {
    ops.norm_apply(t[x], t[mean], t[rstd], t[weight], t[bias], t[normed]);
  };
  return c;
}

Case gelu_again(const StepShape& s) {
  const int64_t N = s.tokens(), F = s.model.ffn_width();
  Case c{.name = "gelu (recomputation)", .shape = rows_shape(N, F)};
  const int pre = c.input("pre", s.compute(), {N, F}, normal(), some_rows);
  const int y = c.output("y", s.compute(), {N, F}, some_rows);
  c.run = [=](Ops& ops, const Tensors& t) { ops.gelu_forward(t[pre], t[y]); };
  return c;
}

// ---- embeddings

// The share of a table's rows that N scattered tokens touch.
double touched(int64_t tokens, int64_t rows) {
  return std::min(1.0, static_cast<double>(tokens) / static_cast<double>(rows));
}

std::string table_shape(const StepShape& s, int64_t rows) {
  return text(s.tokens(), " of ", rows, " x ", s.model.channels);
}

Case tokens_forward(const StepShape& s) {
  const int64_t N = s.tokens(), C = s.model.channels, V = s.model.padded_vocab();
  Case c{.name = "embed_tokens", .shape = table_shape(s, V), .times = 1};
  const int tokens = c.input("tokens", DType::i32, {N}, scattered(V), some_rows);
  const int table = c.input("table", s.compute(), {V, C});
  c.operands.back().share = touched(N, V);
  const int out = c.output("out", s.compute(), {N, C}, some_rows);
  c.run = [=](Ops& ops, const Tensors& t) { ops.embed_tokens(t[tokens], t[table], 0, t[out]); };
  return c;
}

Case positions_forward(const StepShape& s) {
  const int64_t N = s.tokens(), C = s.model.channels, T = s.model.context;
  Case c{.name = "embed_positions", .shape = table_shape(s, T), .times = 1};
  const int x = c.inout("x", s.compute(), {N, C}, normal(), some_rows);
  const int positions = c.input("positions", DType::i32, {N}, counting(T), some_rows);
  const int table = c.input("table", s.compute(), {T, C});
  c.run = [=](Ops& ops, const Tensors& t) { ops.embed_positions(t[x], t[positions], t[table], {}); };
  return c;
}

Case tokens_backward(const StepShape& s) {
  const int64_t N = s.tokens(), C = s.model.channels, V = s.model.padded_vocab();
  const std::vector<Cut> some_columns = {{1, 8}};
  Case c{.name = "embed_tokens backward", .shape = table_shape(s, V), .times = 1, .expected = 0.35};
  const int tokens = c.input("tokens", DType::i32, {N}, scattered(V));
  const int d = c.input("d", s.compute(), {N, C}, normal(), some_columns);
  const int d_table = c.inout("d_table", DType::f32, {V, C}, normal(), some_columns);
  c.operands.back().share = touched(N, V);
  c.run = [=](Ops& ops, const Tensors& t) { ops.embed_tokens_backward(t[tokens], t[d], 0, t[d_table]); };
  return c;
}

Case positions_backward(const StepShape& s) {
  const int64_t N = s.tokens(), C = s.model.channels, T = s.model.context;
  const std::vector<Cut> some_columns = {{1, 8}};
  Case c{.name = "embed_positions backward", .shape = table_shape(s, T), .times = 1, .expected = 0.35};
  const int d = c.input("d", s.compute(), {N, C}, normal(), some_columns);  // unchanged without dropout
  const int positions = c.input("positions", DType::i32, {N}, counting(T));
  const int d_table = c.inout("d_table", DType::f32, {T, C}, normal(), some_columns);
  c.run = [=](Ops& ops, const Tensors& t) {
    ops.embed_positions_backward(t[d], t[positions], {}, t[d_table]);
  };
  return c;
}

// ---- loss

// What the three operations of the loss share, on one chunk of tokens.
struct Loss {
  Case c;
  int logits, targets, stats;
  VocabShard shard;

  Loss(const StepShape& s, const std::string& name, bool makes_stats) {
    const int64_t N = s.chunk(), V = s.model.padded_vocab();
    shard = {0, s.model.vocab};
    c.name = name;
    c.shape = rows_shape(N, V);
    c.times = static_cast<double>(s.tokens()) / static_cast<double>(N);
    logits = c.input("logits", s.compute(), {N, V}, normal(2), some_rows);
    targets = c.input("targets", DType::i32, {N}, scattered(s.model.vocab), some_rows);
    const std::vector<Cut> cuts = {{1, 4}};
    stats = makes_stats ? c.output("stats", DType::f32, {3, N}, cuts)
                        : c.input("stats", DType::f32, {3, N}, positive(1, 1), cuts);
  }
};

Case loss_statistics(const StepShape& s) {
  Loss loss(s, "cross_entropy statistics", true);
  loss.c.run = [logits = loss.logits, targets = loss.targets, stats = loss.stats, shard = loss.shard](
                   Ops& ops, const Tensors& t) {
    ops.cross_entropy_statistics(t[logits], t[targets], shard, t[stats]);
  };
  return loss.c;
}

Case loss_finish(const StepShape& s) {
  Loss loss(s, "cross_entropy finish", false);
  const int64_t N = s.chunk();
  const int losses = loss.c.output("losses", DType::f32, {N}, some_rows);
  const int d_logits = loss.c.output("d_logits", s.compute(), {N, s.model.padded_vocab()}, some_rows);
  loss.c.prepare = loss_statistics(s).run;  // the first three operands are the same
  loss.c.run = [=, logits = loss.logits, targets = loss.targets, stats = loss.stats, shard = loss.shard](
                   Ops& ops, const Tensors& t) {
    ops.cross_entropy_finish(t[logits], t[targets], shard, t[stats], t[losses], t[d_logits]);
  };
  return loss.c;
}

// After the first call the maxima are the global ones, and later calls multiply by 1.
Case loss_rescale(const StepShape& s) {
  const int64_t N = s.tokens();
  Case c{.name = "cross_entropy rescale (tensor parallel)", .shape = text("3 x ", N), .expected = 0.5};
  const int stats = c.inout("stats", DType::f32, {3, N}, positive(1, 1), {{1, 4}});
  const int global_max = c.input("global_max", DType::f32, {N}, positive(1, 2), {{0, 4}});
  c.run = [=](Ops& ops, const Tensors& t) { ops.cross_entropy_rescale(t[stats], t[global_max]); };
  return c;
}

}  // namespace

std::vector<Case> row_cases(const StepShape& s) {
  return {norm_forward(s),    norm_backward(s),     norm_again(s),      gelu_again(s),
          tokens_forward(s),  positions_forward(s), tokens_backward(s), positions_backward(s),
          loss_statistics(s), loss_rescale(s),      loss_finish(s)};
}

}  // namespace hearth::bench
