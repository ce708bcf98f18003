#include "train/step.h"

#include <algorithm>
#include <cmath>

namespace hearth {

StageOptions stage_options(const RunConfig& config, const Grid& grid) {
  StageOptions options;
  options.layers = config.model.layers;
  options.rows = micro_batch_of(config.train);
  options.time = config.model.context;
  options.precision = config.train.precision;
  options.recompute = config.train.recompute;
  options.seed = config.train.seed;
  options.shard = {grid.at(Axis::tensor), grid.size(Axis::tensor)};
  return options;
}

namespace {

std::vector<ParamSpec> parameters_of(const RunConfig& config, const Grid& grid) {
  const StageOptions options = stage_options(config, grid);
  return stage_parameters(config.model, options.first_layer, options.layers);
}

}  // namespace

MemoryPlan StepRunner::plan(const RunConfig& config, const Grid& grid) {
  MemoryPlan plan;
  const StageOptions options = stage_options(config, grid);
  const std::vector<Parameter> parameters =
      ParameterSet::plan(parameters_of(config, grid), config.train.precision, ParameterSet::Purpose::training,
                         options.shard, plan);
  Optimizer::plan(parameters, config.train.precision, static_cast<int>(config.parallel.zero),
                  grid.size(Axis::data), plan);
  plan_stage(config.model, options, plan);
  return plan;
}

StepRunner::StepRunner(const RunConfig& config, Device& device, const ProcessGroups& groups)
    : config_(config),
      device_(device),
      groups_(groups),
      parameters_(device, parameters_of(config, groups.grid), config.train.precision,
                  ParameterSet::Purpose::training, groups.tensor_shard()),
      optimizer_(device, parameters_, static_cast<int>(config.parallel.zero), *groups.data),
      stage_(config.model, stage_options(config, groups.grid), device, parameters_, *groups.tensor) {
  Carver measure;
  measure.take(DType::f64, {2});
  measure.take(DType::u8, {sizeof(StepParams)});
  scalars_ = Buffer(device, measure.used());
  Carver carver(scalars_.data(), scalars_.bytes());
  totals_ = carver.take(DType::f64, {2});
  step_params_ = carver.take(DType::u8, {sizeof(StepParams)});
  device.ops().set_step_params(static_cast<const StepParams*>(step_params_.data));
}

void StepRunner::initialize() {
  optimizer_.initialize(config_.train.seed);
}

void StepRunner::set_step_params(const StepParams& params) {
  host_params_ = params;
  device_.copy_in(step_params_, &host_params_);
}

// Each element of the model is counted by one rank: copies by the first rank of the tensor axis.
bool StepRunner::counts(const ParamSpec& spec) const {
  return spec.shard_dim >= 0 || groups_.tensor->rank() == 0;
}

StepResult StepRunner::run(const StepInput& input, const std::vector<HostBatch>& microbatches,
                           const std::function<void()>& on_gradients) {
  const double valid = count_valid(microbatches);
  StepParams params;
  params.first_sample = input.first_sample;
  params.learning_rate = input.learning_rate;
  params.loss_scale = valid > 0 ? 1.0 / valid : 0.0;
  params.bias_correction1 =
      1.0 - std::pow(config_.optimizer.beta1, static_cast<double>(input.optimizer_step));
  params.bias_correction2 =
      1.0 - std::pow(config_.optimizer.beta2, static_cast<double>(input.optimizer_step));
  set_step_params(params);

  accumulate(input.first_sample, microbatches);
  optimizer_.finish_reduction();
  if (on_gradients) on_gradients();
  const Totals totals = reduce_totals();

  // The one time that the host waits for the device: the same numbers on every rank, so the same decision.
  StepResult result;
  result.loss = totals.loss * params.loss_scale;
  result.grad_norm = std::sqrt(totals.squares);
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (!result.finite) {
    parameters_.clear_gradients();
    return result;
  }
  const double clip = config_.optimizer.clip;
  if (clip > 0) params.clip_scale = std::min(1.0, clip / (result.grad_norm + 1e-6));
  set_step_params(params);
  optimizer_.update({config_.optimizer.beta1, config_.optimizer.beta2, config_.optimizer.eps,
                     config_.optimizer.weight_decay});
  return result;
}

// Predicted tokens of the whole step, over the data axis: the one divisor of the loss.
double StepRunner::count_valid(const std::vector<HostBatch>& microbatches) {
  double valid = 0;
  for (const HostBatch& batch : microbatches)
    valid += static_cast<double>(
        std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; }));
  if (groups_.data->size() == 1) return valid;
  const Tensor total = totals_.rows(0, 1);
  device_.copy_in(total, &valid);
  groups_.data->all_reduce(total, Reduce::sum).wait();
  device_.copy_out(&valid, total);
  return valid;
}

void StepRunner::accumulate(int64_t first_sample, const std::vector<HostBatch>& microbatches) {
  stage_.clear_loss();
  for (const HostBatch& host : microbatches) {
    const Microbatch batch{host.first_sample - first_sample, host.rows, config_.model.context, true};
    stage_.set_input(0, batch, host.tokens, host.targets);
    stage_.forward(0, batch);
    const bool last = &host == &microbatches.back();
    stage_.backward(
        0, batch,
        last ? [this](int64_t layer) { optimizer_.layer_done(layer); } : std::function<void(int64_t)>{});
  }
}

// Before: each rank's sums; after: those of the run.  A loss is the same on all ranks of the tensor axis.
StepRunner::Totals StepRunner::reduce_totals() {
  device_.ops().fill_zero(totals_);
  if (groups_.tensor->rank() == 0)
    device_.ops().copy(stage_.loss_total(), totals_.rows(0, 1));
  optimizer_.gradient_sum_of_squares(totals_.rows(1, 1),
                                     [this](const ParamSpec& spec) { return counts(spec); });
  groups_.all_reduce(totals_, Reduce::sum);
  Totals host;
  device_.copy_out(&host, totals_);
  return host;
}

std::optional<double> StepRunner::evaluate(const Dataset& dataset, int64_t tokens,
                                           const std::function<bool()>& stop) {
  return evaluate_stage(stage_, device_, dataset, tokens, micro_batch_of(config_.train), stop);
}

bool StepRunner::weights_finite() const {
  const Buffer buffer(device_, sizeof(double));
  const Tensor total(buffer.data(), DType::f64, {1});
  device_.ops().fill_zero(total);
  for (const OptimizerPiece& piece : optimizer_.pieces())
    device_.ops().sum(piece.master.reshaped({piece.master.elements()}), total);
  double sum = 0;
  device_.copy_out(&sum, total);
  return std::isfinite(sum);
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

// Of copies, the first rank of an axis writes; the others read.
std::vector<CheckpointPiece> StepRunner::all_pieces() const {
  using Kind = CheckpointPiece::Kind;
  std::vector<CheckpointPiece> pieces;
  for (const OptimizerPiece& piece : optimizer_.pieces()) {
    const Parameter& p = parameters_.all()[piece.parameter];
    std::vector<int64_t> start = p.local.start;
    start[0] += piece.first_row;
    pieces.push_back({Kind::master, p.spec.name, p.spec.shape, start, piece.master});
    pieces.push_back({Kind::moment1, p.spec.name, p.spec.shape, start, piece.moment1});
    pieces.push_back({Kind::moment2, p.spec.name, p.spec.shape, start, piece.moment2});
  }
  return pieces;
}

std::vector<CheckpointPiece> StepRunner::checkpoint_pieces() const {
  std::vector<CheckpointPiece> pieces;
  if (!optimizer_.sharded() && groups_.data->rank() != 0) return pieces;
  for (const CheckpointPiece& piece : all_pieces())
    if (counts(parameters_.at(piece.name).spec)) pieces.push_back(piece);
  return pieces;
}

void StepRunner::load(const CheckpointReader& checkpoint) {
  for (const CheckpointPiece& piece : all_pieces())
    checkpoint.read(piece, device_);
  optimizer_.publish_weights();
  parameters_.clear_gradients();
}

}  // namespace hearth
