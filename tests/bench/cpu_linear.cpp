// Linear layers: forward (with and without GELU), input gradient (with and without GELU'), weight gradient.
#include "cpu_ops.h"

namespace hearth::bench {

namespace {

struct Layer {
  int64_t inputs, outputs;
};

Layer layer_of(const StepShape& s, int64_t index) {
  const int64_t C = s.channels;
  const Layer layers[] = {{C, 3 * C}, {C, C}, {C, 4 * C}, {4 * C, C}, {C, s.vocab}};
  return layers[index];
}

void all_layers(benchmark::internal::Benchmark* b) {
  b->ArgNames({"gpt2", "layer", "bf16"})
      ->ArgsProduct({{0, 1}, {0, 1, 2, 3, 4}, {0, 1}})
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.1);
}

enum class Kind { forward, forward_gelu, input, input_gelu, weight };

void linear(benchmark::State& state, Kind kind) {
  const StepShape& s = shape_of(state.range(0));
  const auto [K, O] = layer_of(s, state.range(1));
  const int64_t N = s.rows();
  Workbench w(type_of(state.range(2)));
  const Tensor x = w.activation({N, K}), y = w.activation({N, O}), weight = w.activation({O, K}, 0.02f);
  const Tensor bias = w.activation({O});
  const Tensor pre = w.activation(kind == Kind::input_gelu ? Shape{N, K} : Shape{N, O});
  const Tensor d_weight = w.master({O, K}), d_bias = w.master({O});
  for (auto _ : state) {
    switch (kind) {
      case Kind::forward:
        w.ops().linear_forward(x, weight, bias, y);
        break;
      case Kind::forward_gelu:
        w.ops().linear_forward(x, weight, bias, y, Activation::gelu, pre);
        break;
      case Kind::input:
        w.ops().linear_backward_input(y, weight, x);
        break;
      case Kind::input_gelu:
        w.ops().linear_backward_input(y, weight, x, pre);
        break;
      case Kind::weight:
        w.ops().linear_backward_weight(y, x, d_weight, d_bias);
        break;
    }
  }
  count_flops(state, 2.0 * static_cast<double>(N * K * O));
}

BENCHMARK_CAPTURE(linear, forward, Kind::forward)->Apply(all_layers);
BENCHMARK_CAPTURE(linear, forward_gelu, Kind::forward_gelu)->Apply(all_layers);
BENCHMARK_CAPTURE(linear, input, Kind::input)->Apply(all_layers);
BENCHMARK_CAPTURE(linear, input_gelu, Kind::input_gelu)->Apply(all_layers);
BENCHMARK_CAPTURE(linear, weight, Kind::weight)->Apply(all_layers);

}  // namespace

}  // namespace hearth::bench
