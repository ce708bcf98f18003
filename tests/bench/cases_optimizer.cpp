// The optimizer and the element-wise operations.
#include <algorithm>

#include "bench/cases.h"

namespace hearth::bench {

namespace {

// Of the flat parameters at most so many: streaming is the same for more.
constexpr int64_t most_parameters = int64_t{1} << 28;
const std::vector<Cut> some_elements = {{0, 4096}};

int64_t flat_parameters(const StepShape& s) {
  return std::min(s.parameters(), most_parameters);
}
double times_of_flat(const StepShape& s) {
  return static_cast<double>(s.parameters()) / static_cast<double>(flat_parameters(s));
}

Case adamw(const StepShape& s) {
  const int64_t n = flat_parameters(s);
  Case c{.name = "adamw", .shape = text(n), .times = times_of_flat(s), .expected = 0.9};
  const int master = c.inout("master", DType::f32, {n}, normal(), some_elements);
  const int moment1 = c.inout("moment1", DType::f32, {n}, normal(), some_elements);
  const int moment2 = c.inout("moment2", DType::f32, {n}, positive(1, 0.1), some_elements);
  const int grad = c.inout("grad", DType::f32, {n}, normal(), some_elements);
  const int weight =
      s.precision == Precision::bf16 ? c.output("weight", DType::bf16, {n}, some_elements) : -1;
  c.run = [=](Ops& ops, const Tensors& t) {
    const AdamWSegment segment{t[master], t[moment1], t[moment2], t[grad], t[weight], true};
    ops.adamw({&segment, 1}, {});
  };
  return c;
}

Case sum_of_squares(const StepShape& s) {
  const int64_t n = flat_parameters(s);
  Case c{.name = "sum_of_squares", .shape = text(n), .times = times_of_flat(s)};
  const int x = c.input("x", DType::f32, {n});
  const int total = c.inout("total", DType::f64, {1});
  c.run = [=](Ops& ops, const Tensors& t) { ops.sum_of_squares(t[x], t[total]); };
  return c;
}

Case sum(const StepShape& s) {
  const int64_t n = s.chunk();
  Case c{.name = "sum (of losses)", .shape = text(n), .expected = 0.02};  // a launch
  c.times = static_cast<double>(s.tokens()) / static_cast<double>(n);
  const int x = c.input("x", DType::f32, {n});
  const int total = c.inout("total", DType::f64, {1});
  c.run = [=](Ops& ops, const Tensors& t) { ops.sum(t[x], t[total]); };
  return c;
}

Case fill_zero(const StepShape& s) {
  const int64_t n = s.tokens() * s.model.channels;
  Case c{.name = "fill_zero", .shape = text(n)};
  const int x = c.output("x", s.compute(), {n}, some_elements);
  c.run = [=](Ops& ops, const Tensors& t) { ops.fill_zero(t[x]); };
  return c;
}

// One of the operations on whole activations, [N, C] flat.
Case elementwise(const StepShape& s, const std::string& name, DType from, DType to, bool two_inputs,
                 const std::function<void(Ops&, const Tensor& a, const Tensor& b, const Tensor& out)>& body) {
  const int64_t n = s.tokens() * s.model.channels;
  Case c{.name = name, .shape = text(n)};
  const int a = c.input("a", from, {n}, normal(), some_elements);
  const int b = two_inputs ? c.input("b", from, {n}, normal(), some_elements) : -1;
  const int out = c.output("out", to, {n}, some_elements);
  c.run = [=](Ops& ops, const Tensors& t) { body(ops, t[a], t[b], t[out]); };
  return c;
}

}  // namespace

std::vector<Case> optimizer_cases(const StepShape& s) {
  const DType c = s.compute();
  const auto cast = [](Ops& ops, const Tensor& a, const Tensor&, const Tensor& out) { ops.cast(a, out); };
  std::vector<Case> cases = {sum(s), sum_of_squares(s), adamw(s), fill_zero(s)};
  if (c == DType::bf16) {
    cases.push_back(elementwise(s, "cast f32 to bf16", DType::f32, DType::bf16, false, cast));
    cases.push_back(elementwise(s, "cast bf16 to f32", DType::bf16, DType::f32, false, cast));
  }
  cases.push_back(
      elementwise(s, "add", c, c, true,
                  [](Ops& ops, const Tensor& a, const Tensor& b, const Tensor& out) { ops.add(a, b, out); }));
  cases.push_back(
      elementwise(s, "copy", c, c, false,
                  [](Ops& ops, const Tensor& a, const Tensor&, const Tensor& out) { ops.copy(a, out); }));
  return cases;
}

}  // namespace hearth::bench
