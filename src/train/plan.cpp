#include "train/plan.h"

#include <algorithm>

#include "base/error.h"
#include "model/activations.h"
#include "parallel/optimizer.h"
#include "parallel/partial_sums.h"
#include "parallel/pipeline.h"
#include "parallel/world.h"
#include "train/step.h"

namespace hearth {

namespace {

// Ranks are counted in an int, and a grid of more is a typing error.
constexpr int64_t most_ranks = 1'000'000;

constexpr int64_t totals_bytes = 3 * sizeof(double);  // loss, squares, wishes: summed over every axis
constexpr int64_t valid_bytes = sizeof(double);       // predicted tokens: summed over the data axis

double as_double(int64_t value) {
  return static_cast<double>(value);
}

// A layout's fixed numbers, shared by the stages.
struct Sizes {
  const RunConfig& config;
  const Grid& grid;
  const Schedule& schedule;
  int64_t tokens;    // of a microbatch
  int64_t master;    // bytes of an element
  int64_t boundary;  // bytes of [N, C]

  // Bytes of the residual stream that a rank holds, and sends to a neighbouring stage.
  int64_t stream() const { return config.parallel.sequence ? boundary / grid.size(Axis::tensor) : boundary; }
};

// Per microbatch without sequence parallelism: the sum behind each row-parallel linear (2 a block forwards;
// their inputs' gradients, 2 a block backwards; 1 more when the attention is computed again), the embedding,
// and the gradient of the head's input.  With it each of these is a reduce_scatter, and there is an
// all_gather before each linear: of the inputs of 2 a block forwards and again backwards (2 more when the
// block is computed again), of the gradients of 2 a block backwards, of the embedding's gradient and of the
// head's input; and once a step the sum of the partial gradients.  In either case the head's largest logit
// and the two sums of the softmax.
void add_tensor(const Sizes& s, StagePlan& stage, bool first, bool last,
                const std::vector<Parameter>& parameters) {
  const int size = s.grid.size(Axis::tensor);
  if (size == 1) return;
  int64_t layers = 0;
  for (const Range& range : stage.layers)
    layers += range.count;
  const bool again = s.config.train.recompute == Recompute::block;
  const int64_t microbatches = s.schedule.microbatches;
  const int64_t sums = s.boundary * (layers * (again ? 5 : 4) + first + last) * microbatches;
  const int64_t gathers = s.boundary * (layers * (again ? 8 : 6) + first + last) * microbatches;
  if (s.config.parallel.sequence) {
    const int parts = s.config.parallel.zero > 0 ? s.grid.size(Axis::data) : 1;
    stage.tensor.part(sums + gathers, size);
    stage.tensor.all_reduce(PartialSums::bytes(parameters, s.config.train.precision, parts), size);
  } else {
    stage.tensor.all_reduce(sums, size);
  }
  const int64_t softmax = last ? 3 * s.tokens * s.master * microbatches : 0;
  stage.tensor.all_reduce(softmax + totals_bytes, size);
}

void add_data(const Sizes& s, StagePlan& stage, const Optimizer::Traffic& traffic) {
  const int size = s.grid.size(Axis::data);
  if (size == 1) return;
  if (s.config.parallel.zero > 0) {
    stage.data.part(traffic.summed, size);
    stage.data.part(traffic.gathered, size);
  } else {
    stage.data.all_reduce(traffic.summed, size);
  }
  stage.data.all_reduce(totals_bytes + valid_bytes, size);
}

// What the schedule sends, and the two halves of the tied embedding's gradient.
void add_pipeline(const Sizes& s, StagePlan& stage, int place, int64_t tied_bytes) {
  const int size = s.grid.size(Axis::pipeline);
  if (size == 1) return;
  for (const Action& action : s.schedule.actions[static_cast<size_t>(place)])
    for (const StageTransfer& transfer : action.transfers)
      if (transfer.sends) stage.pipeline.send(s.stream());
  if (place == 0 || place == size - 1) stage.pipeline.send(tied_bytes);
  stage.pipeline.all_reduce(totals_bytes, size);
}

// The stage's share of flops_per_token(), and what recomputing a block's forward pass (all but its last
// linear) adds.
void add_flops(const Sizes& s, StagePlan& stage, bool last) {
  const ModelConfig& m = s.config.model;
  const double c = as_double(m.channels), attention = c * as_double(m.context);
  const double step_tokens = as_double(s.tokens) * s.schedule.microbatches;
  const double linears = as_double(m.qkv_width()) * c + c * c + 2 * as_double(m.ffn_width()) * c;
  double layers = 0;
  for (const Range& range : stage.layers)
    layers += as_double(range.count);
  const double head = last ? as_double(m.vocab) * c : 0;
  const double share = step_tokens / s.grid.size(Axis::tensor);
  stage.flops = 6 * (layers * (linears + attention) + head) * share;
  if (s.config.train.recompute == Recompute::block)
    stage.recomputed = 2 * layers * (linears - as_double(m.ffn_width()) * c + attention) * share;
}

uint64_t activations_of(const Sizes& s, StageOptions options) {
  options.slots = 1;
  options.recompute = Recompute::none;
  MemoryPlan plan;
  plan_stage(s.config.model, options, plan);
  return plan.activations;
}

StagePlan plan_one(const Sizes& s, const PipelineOptions& options, const Grid& place) {
  StagePlan stage;
  const RunConfig& config = s.config;
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    const StageOptions o = chunk_options(config.model, options, place, chunk);
    stage.layers.push_back({o.first_layer, o.layers});
    stage.slots.push_back(o.slots);
    stage.activations += activations_of(s, o);
  }
  stage.memory = StepRunner::plan(config, place);
  MemoryPlan unused;
  const std::vector<Parameter> parameters = ParameterSet::plan(
      rank_parameters(config, place), config.train.precision, ParameterSet::Purpose::training,
      {place.at(Axis::tensor), place.size(Axis::tensor)}, unused);
  int64_t tied_bytes = 0;
  for (const Parameter& p : parameters) {
    stage.parameters += p.local.shape.elements();
    if (p.spec.tied_head) tied_bytes = p.grad.bytes();
  }
  const bool first = place.first(Axis::pipeline), last = place.last(Axis::pipeline);
  add_tensor(s, stage, first, last, parameters);
  add_data(s, stage,
           Optimizer::traffic(parameters, config.train.precision, static_cast<int>(config.parallel.zero),
                              place.size(Axis::data)));
  add_pipeline(s, stage, place.at(Axis::pipeline), tied_bytes);
  add_flops(s, stage, last);
  return stage;
}

// The sum of the parts of the slowest stage.
StepTime time_of(const RunPlan& plan, const Hardware& hardware) {
  StepTime slowest;
  for (const StagePlan& stage : plan.stages) {
    const MemoryPlan& m = stage.memory;
    const auto bytes = [](uint64_t n) { return static_cast<double>(n); };
    StepTime t;
    t.compute = (stage.flops + stage.recomputed) / hardware.peak_flops;
    t.memory = as_double(plan.microbatches) * (3 * bytes(m.weights) + 4 * bytes(stage.activations)) /
               hardware.memory_bandwidth;
    t.tensor = stage.tensor.sent / hardware.link_bandwidth;
    t.bubble = (t.compute + t.memory + t.tensor) * plan.bubble;
    t.pipeline = stage.pipeline.sent / hardware.link_bandwidth;
    t.data = stage.data.sent / hardware.link_bandwidth;
    t.optimizer =
        (2 * bytes(m.gradients) + 2 * bytes(m.optimizer) + bytes(m.weights)) / hardware.memory_bandwidth;
    if (t.total() > slowest.total()) slowest = t;
  }
  return slowest;
}

}  // namespace

void AxisTraffic::all_reduce(int64_t bytes, int group) {
  payload += bytes;
  sent += 2.0 * (group - 1) / group * as_double(bytes);
}

void AxisTraffic::part(int64_t bytes, int group) {
  payload += bytes;
  sent += 1.0 * (group - 1) / group * as_double(bytes);
}

void AxisTraffic::send(int64_t bytes) {
  payload += bytes;
  sent += as_double(bytes);
}

double RunPlan::tokens_per_step() const {
  return as_double(config.train.batch) * as_double(config.model.context);
}

size_t RunPlan::fullest() const {
  const auto smaller = [](const StagePlan& a, const StagePlan& b) {
    return a.memory.total() < b.memory.total();
  };
  return static_cast<size_t>(std::max_element(stages.begin(), stages.end(), smaller) - stages.begin());
}

RunPlan plan_run(const RunConfig& config, int64_t world, const Hardware& hardware) {
  RunPlan plan{.config = config, .grid = {}, .stages = {}, .schedule = {}, .time = {}};
  const ParallelConfig& parallel = config.parallel;
  if (world > most_ranks)
    fail_usage("a world of ", world, " ranks is more than can be planned (", most_ranks, ")");
  const int64_t data = data_ranks({.tensor = parallel.tensor,
                                   .data = parallel.data,
                                   .pipeline = parallel.pipeline,
                                   .build = {},
                                   .config = {},
                                   .log = {}},
                                  world);
  settle_micro_batch(plan.config.train, data);
  const auto place = [&](int stage) {
    const int64_t rank = stage * parallel.tensor * data;
    return Grid(static_cast<int>(parallel.tensor), static_cast<int>(data),
                static_cast<int>(parallel.pipeline), static_cast<int>(rank));
  };
  plan.grid = place(0);
  const PipelineOptions options = pipeline_options(plan.config, plan.grid);
  plan.microbatches = options.microbatches;
  plan.schedule =
      make_schedule(options.schedule, plan.grid.size(Axis::pipeline), options.chunks, options.microbatches);
  plan.bubble = simulate(plan.schedule, Sends::buffered).bubble();

  const int64_t tokens = options.stage.tokens();
  const Sizes sizes{plan.config,
                    plan.grid,
                    plan.schedule,
                    tokens,
                    size_of(master_dtype(config.train.precision)),
                    tokens * config.model.channels * size_of(compute_dtype(config.train.precision))};
  for (int stage = 0; stage < plan.grid.size(Axis::pipeline); ++stage)
    plan.stages.push_back(plan_one(sizes, options, place(stage)));
  plan.time = time_of(plan, hardware);
  plan.mfu = flops_per_token(config.model) * plan.tokens_per_step() /
             (plan.time.total() * plan.grid.world() * hardware.peak_flops);
  return plan;
}

}  // namespace hearth
