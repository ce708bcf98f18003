// Trains a tiny GPT in some layout, in fp64 on the reference device, and keeps what the run leaves: losses,
// norms, each gradient tensor, the weights after three steps.  Dropout is on, masks are ragged, clipping is
// active.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "support/model_harness.h"
#include "support/thread_ranks.h"
#include "train/step.h"

namespace hearth::testing {

struct Layout {
  int tensor = 1, data = 1, pipeline = 1;
  int zero = 0;
  const char* schedule = "1f1b";
  int chunks = 1;
  Recompute recompute = Recompute::none;
  bool tied = true;
};

inline std::string name_of(const Layout& l) {
  return text("t", l.tensor, "_d", l.data, "_p", l.pipeline, "_zero", l.zero, "_",
              std::string(l.schedule) == "1f1b" ? "onefoneb" : l.schedule, l.chunks, "_r",
              static_cast<int>(l.recompute), l.tied ? "_tied" : "_untied");
}

inline RunConfig config_of(const Layout& l) {
  RunConfig c;
  c.model.layers = 5;
  c.model.heads = 8;
  c.model.channels = 64;
  c.model.context = 16;
  c.model.vocab = 97;
  c.model.dropout = 0.1;
  c.model.tied = l.tied;
  c.train.batch = 12;
  c.train.micro_batch = 1;
  c.train.precision = Precision::fp64;
  c.train.recompute = l.recompute;
  c.train.seed = 3;
  c.optimizer.clip = 0.5;
  c.parallel.zero = l.zero;
  c.parallel.schedule = l.schedule;
  c.parallel.virtual_stages = l.chunks;
  return c;
}

// Sample k of the run, by formula; some targets are masked, more in some samples than in others.
inline HostBatch sample(const ModelConfig& m, int64_t k) {
  HostBatch batch;
  batch.first_sample = k;
  batch.rows = 1;
  for (int64_t t = 0; t < m.context; ++t) {
    batch.tokens.push_back(static_cast<int32_t>(mix64(k * 100 + t) % static_cast<uint64_t>(m.vocab)));
    const bool masked = mix64(k * 1000 + t) % 8 < static_cast<uint64_t>(k % 5);
    batch.targets.push_back(
        masked ? -1 : static_cast<int32_t>(mix64(k * 7777 + t) % static_cast<uint64_t>(m.vocab)));
  }
  return batch;
}

// What a run leaves: whole tensors, put together from the ranks' rectangles.
struct Trace {
  std::vector<double> losses, norms;
  std::map<std::string, Values> gradients;  // of the first step
  std::map<std::string, Values> weights;    // after three steps
};

inline void place(std::map<std::string, Values>& whole, const ParamSpec& spec,
                  const std::vector<int64_t>& start, const Shape& shape, const Values& values) {
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

inline Trace train(const Layout& l, const Decorate& decorate = {}) {
  Trace trace;
  std::mutex mutex;
  run_ranks(
      l.tensor, l.data, l.pipeline,
      [&](const ProcessGroups& groups) {
        const RunConfig config = config_of(l);
        auto device = make_reference_device();
        StepRunner runner(config, *device, groups);
        runner.initialize();
        const int64_t d = groups.grid.at(Axis::data);
        for (int step = 0; step < 3; ++step) {
          std::vector<HostBatch> batches;
          for (int64_t j = 0; j < config.train.batch / l.data; ++j)
            batches.push_back(sample(config.model, step * config.train.batch + j * l.data + d));
          const auto collect = [&] {
            if (step > 0) return;
            const std::lock_guard lock(mutex);
            for (const OptimizerPiece& piece : runner.optimizer().pieces()) {
              const Parameter& p = runner.parameters().all()[piece.parameter];
              std::vector<int64_t> start = p.local.start;
              start[0] += piece.first_row;
              place(trace.gradients, p.spec, start, piece.grad.shape, to_host(*device, piece.grad));
            }
          };
          const StepResult result = runner.run({step * config.train.batch, 1e-2, step + 1}, batches, collect);
          if (groups.grid.rank() == 0) {
            trace.losses.push_back(result.loss);
            trace.norms.push_back(result.grad_norm);
          }
        }
        const std::lock_guard lock(mutex);
        for (const Parameter& p : runner.parameters().all())
          place(trace.weights, p.spec, p.local.start, p.local.shape, to_host(*device, p.weight));
      },
      decorate);
  return trace;
}

// The largest relative error of anything, and where.
inline std::pair<double, std::string> difference(const Trace& a, const Trace& b) {
  std::pair<double, std::string> worst{0, "nothing"};
  const auto note = [&worst](double error, const std::string& where) {
    if (!(error <= worst.first)) worst = {error, where};
  };
  for (size_t i = 0; i < b.losses.size(); ++i) {
    note(std::abs(a.losses[i] - b.losses[i]) / b.losses[i], "loss");
    note(std::abs(a.norms[i] - b.norms[i]) / b.norms[i], "norm");
  }
  const double key_scale = norm_of(b.gradients.at("h.0.attn.q.bias"));
  for (const auto& [name, g] : b.gradients) {
    if (!a.gradients.count(name) || a.gradients.at(name).size() != g.size()) {
      note(1.0, name + " is missing");
      continue;
    }
    // The gradient of a key bias is zero but for rounding, and AdamW makes a step of any size from it.
    const bool zero = name.find("attn.k.bias") != std::string::npos;
    Values delta(g.size());
    for (size_t i = 0; i < g.size(); ++i)
      delta[i] = a.gradients.at(name)[i] - g[i];
    note(norm_of(delta) / (zero ? key_scale : norm_of(g)), name + " gradient");
    if (!zero) note(relative_error(a.weights.at(name), b.weights.at(name)), name + " weight");
  }
  return worst;
}

inline const Trace& alone(bool tied) {
  static const Trace traces[2] = {train({.tied = false}), train({.tied = true})};
  return traces[tied ? 1 : 0];
}

}  // namespace hearth::testing
