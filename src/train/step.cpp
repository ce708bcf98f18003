#include "train/step.h"

#include <algorithm>
#include <cmath>

namespace hearth {

PipelineOptions pipeline_options(const RunConfig& config, const Grid& grid) {
  PipelineOptions options;
  const std::string& name = config.parallel.schedule;
  options.schedule = name == "gpipe"         ? ScheduleKind::gpipe
                     : name == "interleaved" ? ScheduleKind::interleaved
                                             : ScheduleKind::one_f_one_b;
  options.chunks = static_cast<int>(config.parallel.virtual_stages);
  const int64_t rows = micro_batch_of(config.train);
  options.microbatches = static_cast<int>(config.train.batch / (rows * grid.size(Axis::data)));
  options.stage.rows = rows;
  options.stage.time = config.model.context;
  options.stage.precision = config.train.precision;
  options.stage.recompute = config.train.recompute;
  options.stage.seed = config.train.seed;
  options.stage.logits_bytes =
      runs_on_gpu(config.device) ? StageOptions::gpu_logits_bytes : StageOptions::host_logits_bytes;
  options.stage.sequence = config.parallel.sequence;
  return options;
}

std::vector<ParamSpec> rank_parameters(const RunConfig& config, const Grid& grid) {
  const PipelineOptions options = pipeline_options(config, grid);
  std::vector<ParamSpec> specs;
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    const StageOptions stage = chunk_options(config.model, options, grid, chunk);
    for (const ParamSpec& spec : stage_parameters(config.model, stage.first_layer, stage.layers))
      specs.push_back(spec);
  }
  return specs;
}

void settle_micro_batch(TrainConfig& train, int64_t data_ranks) {
  int64_t& micro = train.micro_batch;
  if (micro == 0) micro = std::max<int64_t>(1, train.batch / data_ranks);
  const int64_t samples = micro * data_ranks;
  if (train.batch % samples != 0)
    fail_usage("train.batch = ", train.batch, " is not a multiple of microbatch ", micro, " x ", data_ranks,
               " data-parallel ranks = ", samples,
               "; the nearest that are: ", std::max(samples, train.batch / samples * samples), " and ",
               (train.batch / samples + 1) * samples);
}

namespace {

// The first and the last stage of a pipeline exchange the gradient of the tied embedding.
bool has_tied_copy(const ModelConfig& model, const Grid& grid) {
  const bool end = grid.first(Axis::pipeline) || grid.last(Axis::pipeline);
  return model.tied && grid.size(Axis::pipeline) > 1 && end;
}

// Of the optimizer's rows.
int parts_of(const RunConfig& config, const Grid& grid) {
  return config.parallel.zero > 0 ? grid.size(Axis::data) : 1;
}

// Room for what comes from the other end.
size_t tied_bytes(const std::vector<Parameter>& parameters) {
  for (const Parameter& p : parameters)
    if (p.spec.tied_head) return static_cast<size_t>(p.grad.bytes());
  return 0;
}

OpSizes op_sizes(const RunConfig& config, const Grid& grid, const std::vector<Parameter>& parameters) {
  OpSizes sizes;
  const PipelineOptions options = pipeline_options(config, grid);
  for (int chunk = 0; chunk < options.chunks; ++chunk)
    add_op_sizes(config.model, chunk_options(config.model, options, grid, chunk), sizes);
  for (const Parameter& p : parameters)
    sizes.summed = std::max(sizes.summed, p.local.shape.elements());
  return sizes;
}

}  // namespace

StepTables step_tables(const RunConfig& config, const Grid& grid) {
  const PipelineOptions options = pipeline_options(config, grid);
  return {rank_parameters(config, grid),
          make_schedule(options.schedule, grid.size(Axis::pipeline), options.chunks, options.microbatches)};
}

MemoryPlan StepRunner::plan(const RunConfig& config, const Grid& grid, const Device* device) {
  MemoryPlan plan;
  const PipelineOptions options = pipeline_options(config, grid);
  const TensorShard shard{grid.at(Axis::tensor), grid.size(Axis::tensor)};
  const std::vector<Parameter> parameters = ParameterSet::plan(
      rank_parameters(config, grid), config.train.precision, ParameterSet::Purpose::training, shard, plan);
  Optimizer::plan(parameters, config.train.precision, static_cast<int>(config.parallel.zero),
                  grid.size(Axis::data), plan);
  for (int chunk = 0; chunk < options.chunks; ++chunk)
    plan_stage(config.model, chunk_options(config.model, options, grid, chunk), plan);
  if (has_tied_copy(config.model, grid)) plan.communication += tied_bytes(parameters);
  if (options.stage.sequence)
    plan.communication +=
        static_cast<uint64_t>(PartialSums::bytes(parameters, config.train.precision, parts_of(config, grid)));
  if (device) plan.scratch += device->workspace_bytes(op_sizes(config, grid, parameters));
  return plan;
}

StepRunner::StepRunner(const RunConfig& config, Device& device, const ProcessGroups& groups,
                       const StepTables& tables)
    : config_(config),
      device_(device),
      groups_(groups),
      parameters_(device, tables.parameters, config.train.precision, ParameterSet::Purpose::training,
                  groups.tensor_shard()),
      optimizer_(device, parameters_, static_cast<int>(config.parallel.zero), *groups.data),
      pipeline_(config.model, pipeline_options(config, groups.grid), tables.schedule, device, parameters_,
                groups) {
  device.reserve_workspace(op_sizes(config, groups.grid, parameters_.all()));
  if (config.parallel.sequence && groups.tensor->size() > 1)
    partial_sums_ = PartialSums(device, parameters_, optimizer_, parts_of(config, groups.grid));
  Carver measure;
  measure.take(DType::f64, {3});
  measure.take(DType::u8, {sizeof(StepParams)});
  scalars_ = Buffer(device, measure.used());
  Carver carver(scalars_.data(), scalars_.bytes());
  totals_ = carver.take(DType::f64, {3});
  step_params_ = carver.take(DType::u8, {sizeof(StepParams)});
  device.ops().set_step_params(static_cast<const StepParams*>(step_params_.data));
  if (has_tied_copy(config_.model, groups_.grid)) {
    const Tensor& gradient = parameters_.at("wte.weight").grad;
    tied_buffer_ = Buffer(device, tied_bytes(parameters_.all()));
    tied_gradient_ = Tensor(tied_buffer_.data(), gradient.dtype, gradient.shape);
  }
}

void StepRunner::initialize() {
  optimizer_.initialize(config_.train.seed);
}

void StepRunner::set_step_params(const StepParams& params) {
  device_.copy_in(step_params_, &params);
}

// Each element of the model is counted by one rank: copies by the first rank of the tensor axis, the tied
// embedding by the first stage.
bool StepRunner::counts(const ParamSpec& spec) const {
  if (spec.tied_head && !pipeline_.first_stage()) return false;
  return spec.shard_dim >= 0 || groups_.tensor->rank() == 0;
}

namespace {

// Up to 2^17 ranks can wish for the same thing, and an f64 counts exactly to 2^53.
double digit_of(StopWish wish) {
  return std::exp2(17.0 * (static_cast<double>(wish) - 1));
}

StopWish strongest(double wishes) {
  for (StopWish wish : {StopWish::terminate, StopWish::interrupt, StopWish::early})
    if (wishes >= digit_of(wish)) return wish;
  return StopWish::none;
}

}  // namespace

StepResult StepRunner::run(const StepInput& input, const std::vector<HostBatch>& microbatches,
                           const std::function<void()>& on_gradients) {
  const ProfileRange range(device_, "step");
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

  pipeline_.clear_loss();
  pipeline_.train(microbatches, input.first_sample, [this](int64_t layer) { optimizer_.layer_done(layer); });
  sum_tied_gradients();
  optimizer_.finish_reduction();
  partial_sums_.sum(device_, *groups_.tensor);
  if (on_gradients) on_gradients();
  optimizer_.gradient_sum_of_squares(clear_totals().rows(1, 1),
                                     [this](const ParamSpec& spec) { return counts(spec); });
  add_loss();
  const Totals totals = reduce_totals(input.wish);

  // The one time that the host waits for the device: the same numbers on every rank, so the same decision.
  StepResult result;
  result.loss = totals.loss * params.loss_scale;
  result.grad_norm = std::sqrt(totals.squares);
  result.stop = strongest(totals.wishes);
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

// The first stage looks tokens up in the embedding, the last one uses it as the LM head.  Before: each has
// its own contribution to the gradient; after: both have the sum (of two numbers, so in the same bits).
void StepRunner::sum_tied_gradients() {
  if (!has_tied_copy(config_.model, groups_.grid)) return;
  const Tensor& gradient = parameters_.at("wte.weight").grad;
  const int peer = pipeline_.first_stage() ? groups_.pipeline->size() - 1 : 0;
  const Transfer transfers[] = {{Transfer::Direction::send, gradient, peer},
                                {Transfer::Direction::receive, tied_gradient_, peer}};
  groups_.pipeline->exchange(transfers).wait();
  device_.ops().add(gradient, tied_gradient_, gradient);
}

const Tensor& StepRunner::clear_totals() {
  device_.ops().fill_zero(totals_);
  return totals_;
}

// Before: each rank's sums; after: those of the run.  A loss is the same on all ranks of the tensor axis.
StepRunner::Totals StepRunner::reduce_totals(StopWish wish) {
  if (wish != StopWish::none) {
    const double digit = digit_of(wish);
    device_.copy_in(totals_.rows(2, 1), &digit);
  }
  groups_.all_reduce(totals_, Reduce::sum);
  Totals host;
  device_.copy_out(&host, totals_);
  groups_.throw_if_failed();
  return host;
}

void StepRunner::add_loss() {
  if (groups_.tensor->rank() == 0 && pipeline_.last_stage())
    device_.ops().copy(pipeline_.loss_total(), totals_.rows(0, 1));
}

namespace {

// A batch whose loss is zero: ranks without samples left take part with one.
HostBatch without_targets(HostBatch batch) {
  std::fill(batch.targets.begin(), batch.targets.end(), -1);
  return batch;
}

}  // namespace

// Samples go round the data axis in batches, and as many batches of each rank at a time through the pipeline
// as make its bubble small.  Every rank makes the same number of passes over the same number of batches.
EvaluationResult StepRunner::evaluate(const Dataset& dataset, int64_t tokens,
                                      const std::function<StopWish()>& wish) {
  const int64_t context = dataset.context();
  int64_t samples = dataset.samples();
  if (tokens > 0) samples = std::clamp<int64_t>(tokens / context, 1, samples);
  const int64_t rows = micro_batch_of(config_.train);
  const int64_t round = rows * groups_.data->size();
  const int stages = groups_.pipeline->size();
  const int64_t at_once = stages > 1 ? 4 * stages : 1;
  double total = 0;
  for (int64_t begin = 0; begin < samples; begin += round * at_once) {
    std::vector<HostBatch> batches;
    for (int64_t at = begin; at < std::min(samples, begin + round * at_once); at += round) {
      const int64_t first = at + rows * groups_.data->rank();
      const int64_t count = std::clamp<int64_t>(samples - first, 0, rows);
      if (count > 0)
        batches.push_back(read_in_order(dataset, first, count));
      else
        batches.push_back(without_targets(read_in_order(dataset, 0, 1)));
    }
    pipeline_.clear_loss();
    pipeline_.evaluate(batches);
    clear_totals();
    add_loss();
    const Totals totals = reduce_totals(wish());
    if (totals.wishes > 0) return {std::nullopt, strongest(totals.wishes)};
    total += totals.loss;
  }
  pipeline_.clear_loss();
  return {total / static_cast<double>(samples * context), StopWish::none};
}

StopWish StepRunner::agree(StopWish mine) {
  clear_totals();
  return strongest(reduce_totals(mine).wishes);
}

std::optional<OddReplica> StepRunner::odd_replica() {
  return find_odd_replica(device_, config_.model, parameters_, optimizer_, groups_);
}

// A NaN or an infinity on any rank makes the sum one.
bool StepRunner::weights_finite() {
  const Tensor sum = clear_totals().rows(0, 1);
  for (const OptimizerPiece& piece : optimizer_.pieces())
    device_.ops().sum(piece.master.reshaped({piece.master.elements()}), sum);
  return std::isfinite(reduce_totals(StopWish::none).loss);
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

std::vector<GradientPiece> StepRunner::gradient_pieces() const {
  std::vector<GradientPiece> pieces;
  if (!optimizer_.sharded() && groups_.data->rank() != 0) return pieces;
  for (const OptimizerPiece& piece : optimizer_.pieces()) {
    const Parameter& p = parameters_.all()[piece.parameter];
    std::vector<int64_t> start = p.local.start;
    start[0] += piece.first_row;
    if (counts(p.spec)) pieces.push_back({p.spec.name, start, piece.grad});
  }
  return pieces;
}

void StepRunner::load(const CheckpointReader& checkpoint) {
  for (const CheckpointPiece& piece : all_pieces())
    checkpoint.read(piece, device_);
  optimizer_.publish_weights();
  parameters_.clear_gradients();
}

}  // namespace hearth
