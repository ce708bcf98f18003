// AdamW (Loshchilov and Hutter 2019), and the sums behind the gradient norm and the loss.
#include "device/reference/reference_ops.h"
#include "device/reference/view.h"

namespace hearth::reference {

template <class Compute>
static void adamw_segment(View<Master<Compute>> master, View<Master<Compute>> moment1,
                          View<Master<Compute>> moment2, View<Master<Compute>> grad, View<Compute> weight,
                          double weight_decay, const AdamWConfig& config, const StepParams& step) {
  for (int64_t i = 0; i < master.dim(0); ++i) {
    const double g = grad(i) * step.clip_scale;
    moment1(i) = config.beta1 * moment1(i) + (1 - config.beta1) * g;
    moment2(i) = config.beta2 * moment2(i) + (1 - config.beta2) * g * g;
    const double m = moment1(i) / step.bias_correction1;
    const double v = moment2(i) / step.bias_correction2;
    master(i) = master(i) - step.learning_rate * (m / (std::sqrt(v) + config.eps) + weight_decay * master(i));
    if (weight) weight(i) = master(i);
    grad(i) = 0;
  }
}

void ReferenceOps::adamw(std::span<const AdamWSegment> segments, const AdamWConfig& config) {
  check(step_ != nullptr, "adamw needs the step's scalars: call set_step_params first");
  for (const AdamWSegment& s : segments) {
    const Shape length = {s.master.elements()};
    expect("master", s.master, length);
    expect("moment1", s.moment1, length);
    expect("moment2", s.moment2, length);
    expect("grad", s.grad, length);
    expect_if_present("weight", s.weight, length);
    with_scalar(s.weight ? s.weight.dtype : s.master.dtype, [&]<class Compute>(Compute) {
      adamw_segment<Compute>(s.master, s.moment1, s.moment2, s.grad, s.weight,
                             s.decay ? config.weight_decay : 0.0, config, *step_);
    });
  }
}

void ReferenceOps::sum_of_squares(const Tensor& x, const Tensor& total) {
  expect("total", total, {1});
  with_scalar(x.dtype, [&]<class Scalar>(Scalar) {
    const View<Scalar> elements = flat(x);
    double sum = 0;
    for (int64_t i = 0; i < x.elements(); ++i)
      sum += elements(i) * elements(i);
    *total.as<double>() += sum;
  });
}

void ReferenceOps::sum(const Tensor& x, const Tensor& total) {
  expect("total", total, {1});
  with_master(x.dtype, [&]<class Scalar>(Scalar) {
    const View<Scalar> elements = flat(x);
    double sum = 0;
    for (int64_t i = 0; i < x.elements(); ++i)
      sum += elements(i);
    *total.as<double>() += sum;
  });
}

}  // namespace hearth::reference
