#include "train/layout_check.h"

#include <cmath>
#include <mutex>

#include "base/philox.h"

namespace hearth {

namespace {

using Values = std::vector<double>;
constexpr int steps = 3;

Values to_host(Device& device, const Tensor& t) {
  Values values(static_cast<size_t>(t.elements()));
  if (t.dtype == DType::f64) {
    device.copy_out(values.data(), t);
    return values;
  }
  check(t.dtype == DType::f32, "a trace of ", name_of(t.dtype));
  std::vector<float> floats(values.size());
  device.copy_out(floats.data(), t);
  return Values(floats.begin(), floats.end());
}

double norm_of(const Values& a) {
  double sum = 0;
  for (double x : a)
    sum += x * x;
  return std::sqrt(sum);
}

// ||a - b||, or NaN when the sizes differ.
double distance(const Values& a, const Values& b) {
  if (a.size() != b.size()) return NAN;
  Values delta(b.size());
  for (size_t i = 0; i < b.size(); ++i)
    delta[i] = a[i] - b[i];
  return norm_of(delta);
}

// Samples k ... of the run, by formula; some targets are masked, more in some samples than in others.
HostBatch samples(const ModelConfig& m, int64_t first, int64_t rows) {
  const auto token = [&m](int64_t seed) {
    return static_cast<int32_t>(mix64(static_cast<uint64_t>(seed)) % static_cast<uint64_t>(m.vocab));
  };
  HostBatch batch;
  batch.first_sample = first;
  batch.rows = rows;
  for (int64_t k = first; k < first + rows; ++k)
    for (int64_t t = 0; t < m.context; ++t) {
      batch.tokens.push_back(token(k * 100 + t));
      const bool masked = mix64(static_cast<uint64_t>(k * 1000 + t)) % 8 < static_cast<uint64_t>(k % 5);
      batch.targets.push_back(masked ? -1 : token(k * 7777 + t));
    }
  return batch;
}

// Puts a rectangle of a tensor into its place in the whole one.
void place(std::map<std::string, Values>& whole, const ParamSpec& spec, const std::vector<int64_t>& start,
           const Shape& shape, const Values& values) {
  Values& target = whole[spec.name];
  target.resize(static_cast<size_t>(spec.shape.elements()), 0.0);
  const int64_t columns = shape.rank() > 1 ? shape[1] : 1;
  const int64_t all_columns = spec.shape.rank() > 1 ? spec.shape[1] : 1;
  const int64_t first_column = spec.shape.rank() > 1 ? start[1] : 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t row = start[0] + static_cast<int64_t>(i) / columns;
    target[static_cast<size_t>(row * all_columns + first_column + static_cast<int64_t>(i) % columns)] =
        values[i];
  }
}

// One rank's part of a trace.  Ranks share the trace; its mutex guards it.
class TracedRank {
 public:
  TracedRank(const RunConfig& config, const ProcessGroups& groups, const Alterations& alterations,
             Trace& trace, std::mutex& mutex)
      : config_(config),
        groups_(groups),
        trace_(trace),
        mutex_(mutex),
        device_(alterations.device()),
        runner_(config, *device_, groups, altered_tables(alterations)) {}

  void train() {
    runner_.initialize();
    for (int step = 0; step < steps; ++step)
      this->step(step);
    const std::lock_guard lock(mutex_);
    for (const Parameter& p : runner_.parameters().all())
      place(trace_.weights, p.spec, p.local.start, p.local.shape, to_host(*device_, p.weight));
  }

 private:
  StepTables altered_tables(const Alterations& alterations) const {
    StepTables tables = step_tables(config_, groups_.grid);
    alterations.tables(groups_.grid, tables);
    return tables;
  }

  void step(int step) {
    const int64_t first = step * config_.train.batch, ranks = groups_.grid.size(Axis::data);
    const int64_t rows = config_.train.micro_batch;
    std::vector<HostBatch> batches;
    for (int64_t j = 0; j < config_.train.batch / (ranks * rows); ++j)
      batches.push_back(
          samples(config_.model, first + (j * ranks + groups_.grid.at(Axis::data)) * rows, rows));
    const auto collect = [&] {
      if (step == 0) collect_gradients();
    };
    const StepResult result = runner_.run({first, 1e-2, step + 1}, batches, collect);
    if (groups_.grid.rank() != 0) return;
    trace_.losses.push_back(result.loss);
    trace_.norms.push_back(result.grad_norm);
  }

  void collect_gradients() {
    const std::lock_guard lock(mutex_);
    for (const OptimizerPiece& piece : runner_.optimizer().pieces()) {
      const Parameter& p = runner_.parameters().all()[piece.parameter];
      std::vector<int64_t> start = p.local.start;
      start[0] += piece.first_row;
      place(trace_.gradients, p.spec, start, piece.grad.shape, to_host(*device_, piece.grad));
    }
  }

  const RunConfig& config_;
  const ProcessGroups& groups_;
  Trace& trace_;
  std::mutex& mutex_;
  std::unique_ptr<Device> device_;
  StepRunner runner_;
};

}  // namespace

RunConfig config_of(const Layout& l) {
  RunConfig c;
  c.model.layers = l.layers;
  c.model.heads = 8;
  c.model.channels = 64;
  c.model.context = 16;
  c.model.vocab = 97;
  c.model.dropout = 0.1;
  c.model.tied = l.tied;
  c.train.batch = l.batch;
  c.train.micro_batch = l.rows;
  c.train.precision = l.precision;
  c.train.recompute = l.recompute;
  c.train.seed = 3;
  c.optimizer.clip = 0.5;
  // AdamW makes a step of full size from a gradient that is nothing but rounding; a large eps makes steps in
  // proportion to gradients.
  if (l.precision != Precision::fp64) c.optimizer.eps = 1e-3;
  c.parallel.tensor = l.tensor;
  c.parallel.data = l.data;
  c.parallel.pipeline = l.pipeline;
  c.parallel.sequence = l.sequence;
  c.parallel.zero = l.zero;
  c.parallel.schedule = l.schedule;
  c.parallel.virtual_stages = l.chunks;
  return c;
}

Trace trace_of(const Layout& l, const Alterations& alterations) {
  const RunConfig config = config_of(l);
  Trace trace;
  std::mutex mutex;
  run_as_threads(
      l.tensor, l.data, l.pipeline,
      [&](const ProcessGroups& groups) { TracedRank(config, groups, alterations, trace, mutex).train(); },
      alterations.decorate);
  return trace;
}

Difference difference(const Trace& a, const Trace& b) {
  Difference worst;
  const auto note = [&worst](double error, const std::string& where) {
    if (!(error <= worst.error)) worst = {error, where};  // NaN is the worst
  };
  for (size_t i = 0; i < b.losses.size(); ++i) {
    note(std::abs(a.losses[i] - b.losses[i]) / b.losses[i], "loss");
    note(std::abs(a.norms[i] - b.norms[i]) / b.norms[i], "norm");
  }
  const double key_scale = norm_of(b.gradients.at("h.0.attn.q.bias"));
  for (const auto& [name, gradient] : b.gradients) {
    if (!a.gradients.contains(name)) {
      note(1.0, name + " is missing");
      continue;
    }
    // The gradient of a key bias is zero but for rounding, and AdamW makes a step of any size from it.
    const bool zero = name.find("attn.k.bias") != std::string::npos;
    note(distance(a.gradients.at(name), gradient) / (zero ? key_scale : norm_of(gradient)),
         name + " gradient");
    const Values& weight = b.weights.at(name);
    if (!zero) note(distance(a.weights.at(name), weight) / norm_of(weight), name + " weight");
  }
  return worst;
}

std::vector<Layout> layouts_within(int ranks) {
  const Layout whole{.layers = 8, .batch = 24};
  const int64_t heads = config_of(whole).model.heads;
  std::vector<Layout> layouts;
  for (int tensor = 1; tensor <= ranks; ++tensor)
    for (int data = 1; tensor * data <= ranks; ++data)
      for (int pipeline = 1; tensor * data * pipeline <= ranks; ++pipeline)
        for (int sequence = 0; sequence <= (tensor > 1 ? 1 : 0); ++sequence)
          for (int zero = 0; zero <= (data > 1 ? 1 : 0); ++zero) {
            if (heads % tensor != 0 || whole.batch % data != 0 || pipeline > whole.layers) continue;
            Layout layout = whole;
            layout.tensor = tensor;
            layout.data = data;
            layout.pipeline = pipeline;
            layout.sequence = sequence != 0;
            layout.zero = zero;
            layouts.push_back(layout);
          }
  return layouts;
}

Difference check_layouts(const std::vector<Layout>& layouts,
                         const std::function<void(const Layout&, const Difference&)>& on_result,
                         const Alterations& alterations) {
  Difference worst;
  std::map<std::tuple<bool, int64_t, int64_t>, Trace> alone;
  for (const Layout& layout : layouts) {
    const auto key = std::tuple(layout.tied, layout.layers, layout.batch);
    if (!alone.contains(key))
      alone[key] = trace_of({.tied = layout.tied, .layers = layout.layers, .batch = layout.batch});
    const Difference found = difference(trace_of(layout, alterations), alone.at(key));
    on_result(layout, found);
    if (!(found.error <= worst.error)) worst = found;
  }
  return worst;
}

}  // namespace hearth
