// The linear layers: forward, input gradient and weight gradient of the five matrices of a GPT, each with the
// epilogue that model/stage.cpp asks for.
#include "bench/cases.h"

namespace hearth::bench {

namespace {

struct Layer {
  std::string name;
  int64_t rows, inputs, outputs;  // N, K, O
  double times;
  bool bias = false;         // added by the product; a row-parallel layer leaves it to residual_norm
  bool gelu = false;         // forward: gelu of the result, pre-activation stored
  bool gelu_before = false;  // the input is a GELU: its derivative is an epilogue of the input gradient
};

std::string shape_of(const Layer& l) {
  return text(l.rows, " x ", l.inputs, " -> ", l.outputs);
}

Case product(const std::string& name, const Layer& l, double expected) {
  Case c{.name = l.name + " " + name, .shape = shape_of(l), .expected = expected, .product = true};
  c.flops =
      2.0 * static_cast<double>(l.rows) * static_cast<double>(l.inputs) * static_cast<double>(l.outputs);
  c.times = l.times;
  return c;
}

// cuBLAS reaches about 90% of its best at these shapes, and our wgmma kernel perhaps 93% of cuBLAS; a product
// with a short k spends more of its time in prologue and epilogue.  Rows are computed in tiles of 128.
double expected_for(int64_t rows, int64_t k) {
  const double tiles = static_cast<double>((rows + 127) / 128 * 128);
  return (k < 1024 ? 0.79 : 0.84) * static_cast<double>(rows) / tiles;
}

Case forward(const Layer& l, DType type) {
  const auto [N, K, O] = std::tuple(l.rows, l.inputs, l.outputs);
  Case c = product("forward", l, expected_for(N, K));
  const int x = c.input("x", type, {N, K}, normal(), {{0, 4}});
  const int w = c.input("w", type, {O, K}, normal(0.02));
  const int bias = l.bias ? c.input("bias", type, {O}, normal(0.02)) : -1;
  const int y = c.output("y", type, {N, O}, {{0, 4}});
  const int pre = l.gelu ? c.output("pre", type, {N, O}, {{0, 4}}) : -1;
  const Activation activation = l.gelu ? Activation::gelu : Activation::none;
  c.run = [=](Ops& ops, const Tensors& t) {
    ops.linear_forward(t[x], t[w], t[bias], t[y], activation, t[pre]);
  };
  return c;
}

Case input_gradient(const Layer& l, DType type) {
  const auto [N, K, O] = std::tuple(l.rows, l.inputs, l.outputs);
  Case c = product("input gradient", l, expected_for(N, O));
  const int dy = c.input("dy", type, {N, O}, normal(), {{0, 4}});
  const int w = c.input("w", type, {O, K}, normal(0.02));
  const int pre = l.gelu_before ? c.input("pre", type, {N, K}, normal(), {{0, 4}}) : -1;
  const int dx = c.output("dx", type, {N, K}, {{0, 4}});
  c.run = [=](Ops& ops, const Tensors& t) { ops.linear_backward_input(t[dy], t[w], t[dx], t[pre]); };
  return c;
}

Case weight_gradient(const Layer& l, DType type) {
  const auto [N, K, O] = std::tuple(l.rows, l.inputs, l.outputs);
  Case c = product("weight gradient", l, 0.78);
  const int dy = c.input("dy", type, {N, O}, normal(), {{1, 4}});
  const int x = c.input("x", type, {N, K}, normal(), {{1, 64}});
  const int dw = c.inout("dw", DType::f32, {O, K}, normal(), {{0, 4}, {1, 64}});
  const int dbias = l.bias ? c.inout("dbias", DType::f32, {O}, normal(), {{0, 4}}) : -1;
  c.run = [=](Ops& ops, const Tensors& t) { ops.linear_backward_weight(t[dy], t[x], t[dw], t[dbias]); };
  return c;
}

}  // namespace

std::vector<Case> linear_cases(const StepShape& s) {
  const ModelConfig& m = s.model;
  const int64_t C = m.channels, F = m.ffn_width(), N = s.tokens();
  const auto L = static_cast<double>(m.layers);
  const double chunks = static_cast<double>(N) / static_cast<double>(s.chunk());
  const Layer layers[] = {
      {"qkv", N, C, m.qkv_width(), L, true},
      {"attention proj", N, C, C, L},
      {"mlp fc + gelu", N, C, F, L, true, true},
      {"mlp proj", N, F, C, L, false, false, true},
      {"head", s.chunk(), C, m.padded_vocab(), chunks},
  };
  std::vector<Case> cases;
  for (const Layer& l : layers) {
    cases.push_back(forward(l, s.compute()));
    cases.push_back(input_gradient(l, s.compute()));
    cases.push_back(weight_gradient(l, s.compute()));
  }
  return cases;
}

}  // namespace hearth::bench
