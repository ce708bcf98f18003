// Shapes, attention, the ceilings, and the list as a whole.
#include "bench/cases.h"

#include "model/activations.h"

namespace hearth::bench {

int64_t StepShape::chunk() const {
  StageOptions options;
  options.rows = batch;
  options.time = model.context;
  options.precision = precision;
  options.logits_bytes = logits_bytes;
  return loss_chunk(model, options);
}

int64_t StepShape::parameters() const {
  const int64_t C = model.channels;
  return model.layers * (12 * C * C + 13 * C) + (model.padded_vocab() + model.context + 2) * C;
}

StepShape step_shape(const std::string& name, Precision precision) {
  if (name == "124M") return {name, *model_preset("gpt2-124m"), 64, precision};
  if (name == "1558M") return {name, *model_preset("gpt2-1558m"), 16, precision};
  fail_usage("--model ", name, ", expected 124M or 1558M; other shapes are given with --shape");
}

namespace {

struct AttentionSizes {
  int64_t B, T, H, D, C;
  explicit AttentionSizes(const StepShape& s)
      : B(s.batch), T(s.model.context), H(s.model.heads), D(s.model.head_size()), C(s.model.channels) {}
  std::string shape() const { return text("B=", B, " T=", T, " H=", H, " D=", D); }
};

struct Fused {
  int q, k, v;
};

// Operands for q, k and v, or for their gradients, as views of one [N, 3C].
Fused views(Case& c, int fused, const AttentionSizes& a, const std::string& prefix) {
  const Fused f{c.heads(prefix + "q", fused, a.B, 0, a.H, a.D),
                c.heads(prefix + "k", fused, a.B, a.C, a.H, a.D),
                c.heads(prefix + "v", fused, a.B, 2 * a.C, a.H, a.D)};
  c.only_viewed(fused);
  return f;
}

// Causal: only the pairs of a query with an earlier key are counted, which is half of all pairs.  The forward
// pass has two products of 2 D FLOP for each pair.
double forward_flops(const AttentionSizes& a) {
  return 4.0 * static_cast<double>(a.B * a.H * a.D) * static_cast<double>(a.T * a.T) / 2;
}

Case forward(const StepShape& s) {
  const AttentionSizes a(s);
  Case c{.name = "attention forward", .shape = a.shape()};
  c.flops = forward_flops(a);
  c.times = static_cast<double>(s.model.layers);
  c.expected = 0.27;
  const Fused f = views(c, c.input("qkv", s.compute(), {a.B * a.T, 3 * a.C}), a, "");
  const int out = c.output("out", s.compute(), {a.B, a.T, a.H, a.D}, {{0, 1}, {2, 1}});
  const int lse = c.output("lse", DType::f32, {a.B, a.H, a.T}, {{0, 1}, {1, 1}});
  c.run = [=](Ops& ops, const Tensors& t) { ops.attention_forward(t[f.q], t[f.k], t[f.v], t[out], t[lse]); };
  return c;
}

// Counted with the five products that are needed; our kernels compute seven (kernels/attention_backward.cu).
Case backward(const StepShape& s) {
  const AttentionSizes a(s);
  const std::vector<Cut> one_head = {{0, 1}, {2, 1}}, one_row = {{0, 1}, {1, 1}};
  Case c{.name = "attention backward", .shape = a.shape()};
  c.flops = 2.5 * forward_flops(a);
  c.times = static_cast<double>(s.model.layers);
  c.expected = 0.19;
  const Fused f = views(c, c.input("qkv", s.compute(), {a.B * a.T, 3 * a.C}), a, "");
  const Fused d = views(c, c.output("d_qkv", s.compute(), {a.B * a.T, 3 * a.C}), a, "d_");
  const int out = c.input("out", s.compute(), {a.B, a.T, a.H, a.D}, normal(), one_head);
  const int d_out = c.input("d_out", s.compute(), {a.B, a.T, a.H, a.D}, normal(), one_head);
  const int lse = c.input("lse", DType::f32, {a.B, a.H, a.T}, normal(), one_row);
  const int delta = c.scratch("delta", DType::f32, {a.B, a.H, a.T}, one_row);
  c.prepare = [=](Ops& ops, const Tensors& t) {
    ops.attention_forward(t[f.q], t[f.k], t[f.v], t[out], t[lse]);
  };
  c.run = [=](Ops& ops, const Tensors& t) {
    ops.attention_backward(t[f.q], t[f.k], t[f.v], t[out], t[d_out], t[lse], t[delta], t[d.q], t[d.k],
                           t[d.v]);
  };
  return c;
}

// One new token for each sequence, the cache full.
Case decode(const StepShape& s) {
  const AttentionSizes a(s);
  const std::vector<Cut> one_head = {{0, 1}, {2, 1}};
  Case c{.name = "attention decode", .shape = a.shape()};
  const int q = c.input("q", s.compute(), {a.B, 1, a.H, a.D}, normal(), one_head);
  const int k = c.input("k", s.compute(), {a.B, a.T, a.H, a.D}, normal(), one_head);
  const int v = c.input("v", s.compute(), {a.B, a.T, a.H, a.D}, normal(), one_head);
  const int out = c.output("out", s.compute(), {a.B, 1, a.H, a.D}, one_head);
  c.run = [=, length = a.T](Ops& ops, const Tensors& t) {
    ops.attention_decode(t[q], t[k], t[v], length, t[out]);
  };
  return c;
}

}  // namespace

std::vector<Case> attention_cases(const StepShape& s) {
  return {forward(s), backward(s), decode(s)};
}

std::vector<Case> all_cases(const StepShape& s) {
  std::vector<Case> all;
  for (auto* part : {linear_cases, attention_cases, row_cases, optimizer_cases})
    for (Case& c : part(s))
      all.push_back(std::move(c));
  return all;
}

Case product_ceiling(int64_t edge, Precision precision) {
  const DType type = compute_dtype(precision);
  Case c{.name = "ceiling: product", .shape = text(edge, " x ", edge, " x ", edge), .product = true};
  c.flops = 2.0 * static_cast<double>(edge) * static_cast<double>(edge) * static_cast<double>(edge);
  const int x = c.input("x", type, {edge, edge}, normal(), {{0, 4}});
  const int w = c.input("w", type, {edge, edge}, normal(0.02));
  const int y = c.output("y", type, {edge, edge}, {{0, 4}});
  c.run = [=](Ops& ops, const Tensors& t) { ops.linear_forward(t[x], t[w], {}, t[y]); };
  return c;
}

Case copy_ceiling(int64_t bytes) {
  const int64_t n = bytes / size_of(DType::f32);
  Case c{.name = "ceiling: copy", .shape = text(bytes, " bytes")};
  const int from = c.input("from", DType::f32, {n}, normal(), {{0, 4096}});
  const int to = c.output("to", DType::f32, {n}, {{0, 4096}});
  c.run = [=](Ops& ops, const Tensors& t) { ops.copy(t[from], t[to]); };
  return c;
}

}  // namespace hearth::bench
