#include "train/step.h"

#include <algorithm>
#include <cmath>

namespace hearth {

StageOptions single_stage_options(const RunConfig& config) {
  StageOptions options;
  options.layers = config.model.layers;
  options.rows = micro_batch_of(config.train);
  options.time = config.model.context;
  options.precision = config.train.precision;
  options.recompute = config.train.recompute;
  options.seed = config.train.seed;
  return options;
}

MemoryPlan StepRunner::plan(const RunConfig& config) {
  MemoryPlan plan = ParameterSet::plan(parameter_table(config.model), config.train.precision,
                                       ParameterSet::Purpose::training);
  plan_stage(config.model, single_stage_options(config), plan);
  return plan;
}

StepRunner::StepRunner(const RunConfig& config, Device& device)
    : config_(config),
      device_(device),
      parameters_(device, parameter_table(config.model), config.train.precision,
                  ParameterSet::Purpose::training),
      stage_(config.model, single_stage_options(config), device, parameters_, self_) {
  Carver measure;
  measure.take(DType::f64, {1});
  measure.take(DType::u8, {sizeof(StepParams)});
  scalars_ = Buffer(device, measure.used());
  Carver carver(scalars_.data(), scalars_.bytes());
  norm_total_ = carver.take(DType::f64, {1});
  step_params_ = carver.take(DType::u8, {sizeof(StepParams)});
  device.ops().set_step_params(static_cast<const StepParams*>(step_params_.data));
}

void StepRunner::set_step_params(const StepParams& params) {
  host_params_ = params;
  device_.copy_in(step_params_, &host_params_);
}

double StepRunner::read_scalar(const Tensor& scalar) const {
  double value = 0;
  device_.copy_out(&value, scalar);
  return value;
}

StepResult StepRunner::run(const StepInput& input, const std::vector<HostBatch>& microbatches,
                           const std::function<void()>& on_gradients) {
  int64_t valid = 0;
  for (const HostBatch& batch : microbatches)
    valid += std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; });

  StepParams params;
  params.first_sample = input.first_sample;
  params.learning_rate = input.learning_rate;
  params.loss_scale = valid > 0 ? 1.0 / static_cast<double>(valid) : 0.0;
  params.bias_correction1 =
      1.0 - std::pow(config_.optimizer.beta1, static_cast<double>(input.optimizer_step));
  params.bias_correction2 =
      1.0 - std::pow(config_.optimizer.beta2, static_cast<double>(input.optimizer_step));
  set_step_params(params);

  accumulate(input.first_sample, microbatches);
  device_.ops().fill_zero(norm_total_);
  parameters_.gradient_sum_of_squares(norm_total_);

  // The one time that the host waits for the device.
  StepResult result;
  result.loss = read_scalar(stage_.loss_total()) * params.loss_scale;
  result.grad_norm = std::sqrt(read_scalar(norm_total_));
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (on_gradients) on_gradients();

  if (!result.finite) {
    parameters_.clear_gradients();
    return result;
  }
  const double clip = config_.optimizer.clip;
  if (clip > 0) params.clip_scale = std::min(1.0, clip / (result.grad_norm + 1e-6));
  set_step_params(params);
  const AdamWConfig adamw{config_.optimizer.beta1, config_.optimizer.beta2, config_.optimizer.eps,
                          config_.optimizer.weight_decay};
  device_.ops().adamw(parameters_.segments(), adamw);
  return result;
}

void StepRunner::accumulate(int64_t first_sample, const std::vector<HostBatch>& microbatches) {
  stage_.clear_loss();
  for (const HostBatch& host : microbatches) {
    const Microbatch batch{host.first_sample - first_sample, host.rows, config_.model.context, true};
    stage_.set_input(0, batch, host.tokens, host.targets);
    stage_.forward(0, batch);
    stage_.backward(0, batch);
  }
}

std::optional<double> StepRunner::evaluate(const Dataset& dataset, int64_t tokens,
                                           const std::function<bool()>& stop) {
  return evaluate_stage(stage_, device_, dataset, tokens, micro_batch_of(config_.train), stop);
}

std::optional<double> evaluate_stage(Stage& stage, Device& device, const Dataset& dataset, int64_t tokens,
                                     int64_t rows, const std::function<bool()>& stop) {
  const int64_t context = dataset.context();
  int64_t samples = dataset.samples();
  if (tokens > 0) samples = std::clamp<int64_t>(tokens / context, 1, samples);
  std::vector<int32_t> inputs(static_cast<size_t>(rows * context));
  std::vector<int32_t> targets(inputs.size());

  stage.clear_loss();
  for (int64_t begin = 0; begin < samples; begin += rows) {
    if (stop && stop()) return std::nullopt;
    const Microbatch batch{0, std::min(rows, samples - begin), context, false};
    for (int64_t r = 0; r < batch.rows; ++r)
      dataset.read_sample(begin + r, std::span(inputs).subspan(r * context, context),
                          std::span(targets).subspan(r * context, context));
    const size_t n = static_cast<size_t>(batch.rows * context);
    stage.set_input(0, batch, std::span(inputs).first(n), std::span(targets).first(n));
    stage.forward(0, batch);
  }
  double total = 0;
  device.copy_out(&total, stage.loss_total());
  stage.clear_loss();
  return total / static_cast<double>(samples * context);
}

std::vector<CheckpointPiece> StepRunner::checkpoint_pieces() const {
  using Kind = CheckpointPiece::Kind;
  std::vector<CheckpointPiece> pieces;
  for (const Parameter& p : parameters_.all()) {
    const std::vector<int64_t> origin(static_cast<size_t>(p.spec.shape.rank()), 0);
    pieces.push_back({Kind::master, p.spec.name, p.spec.shape, origin, p.master});
    pieces.push_back({Kind::moment1, p.spec.name, p.spec.shape, origin, p.moment1});
    pieces.push_back({Kind::moment2, p.spec.name, p.spec.shape, origin, p.moment2});
  }
  return pieces;
}

void StepRunner::load(const CheckpointReader& checkpoint) {
  for (const CheckpointPiece& piece : checkpoint_pieces())
    checkpoint.read(piece, device_);
  parameters_.round_masters();
  parameters_.clear_gradients();
}

}  // namespace hearth
