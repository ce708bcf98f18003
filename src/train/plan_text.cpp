// The plan as text.
#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "train/plan.h"
#include "train/report.h"

namespace hearth {

namespace {

// The widest schedule that is shown whole, in microbatches for each stage.
constexpr int shown_microbatches = 8;
// Larger grids are told by their formula only.
constexpr int shown_ranks = 64;

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

// 4.48e17 -> "448 P".
std::string with_prefix(double value) {
  const char* prefixes[] = {"", "k", "M", "G", "T", "P", "E", "Z"};
  size_t at = 0;
  for (; value >= 999.5 && at + 1 < std::size(prefixes); value /= 1000)
    ++at;
  return text(fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0), " ", prefixes[at]);
}

std::string milliseconds(double seconds) {
  return text(fixed(seconds * 1e3, seconds < 0.01 ? 3 : 1), " ms");
}

// Columns as wide as their widest cell, all to the right but for the first.
class TextTable {
 public:
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text(const std::string& indent) const {
    std::vector<size_t> width;
    for (const auto& row : rows_) {
      width.resize(std::max(width.size(), row.size()));
      for (size_t i = 0; i < row.size(); ++i)
        width[i] = std::max(width[i], row[i].size());
    }
    std::string out;
    for (const auto& row : rows_) {
      out += indent;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string space(width[i] - row[i].size(), ' ');
        out += i == 0 ? row[i] + space : "  " + space + row[i];
      }
      out.erase(out.find_last_not_of(' ') + 1);
      out += "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string range_of(int64_t first, int64_t count) {
  return count == 1 ? std::to_string(first) : text(first, "-", first + count - 1);
}

std::string layers_of(const StagePlan& stage) {
  std::string out;
  for (const Range& range : stage.layers)
    out += text(out.empty() ? "" : ",", range_of(range.begin, range.count));
  return out;
}

std::string slots_of(const StagePlan& stage) {
  std::string out;
  for (int slots : stage.slots)
    out += text(out.empty() ? "" : "+", slots);
  return out;
}

// A GPU takes the loss in larger chunks than a CPU, so the plan of `auto` depends on where it is made.
std::string device_text(const DeviceConfig& device) {
  const bool gpu = runs_on_gpu(device);
  const std::string room =
      gpu ? "; its kernels take some tens of MiB more, which the run's start counts" : "";
  if (device.kind != "auto") return text("device     ", device.kind, room, "\n");
  return text("device     ", gpu ? "cuda" : "cpu", ", because device.kind = \"auto\" finds ",
              gpu ? "a" : "no", " GPU here; --device.kind=", gpu ? "cpu" : "cuda", " plans for ",
              gpu ? "a CPU" : "GPUs", room, "\n");
}

std::string head_text(const RunPlan& p) {
  const ModelConfig& m = p.config.model;
  const double flops = flops_per_token(m);
  return text("model      ", model_line(m), "\n", "parameters ", with_commas(parameter_count(m)), ", ",
              with_commas(matmul_parameters(m)), " of them in matrix products\n", "batch      ",
              batch_line(p.config, p.grid), "\n", "precision  ", precision_line(p.config.train), "\n",
              device_text(p.config.device), "layout     ", layout_line(p.config, p.grid), "\n", "flops      ",
              with_prefix(flops),
              "FLOP a token = 6 x matrix parameters + 6 x layers x channels x context (causal); ",
              with_prefix(flops * p.tokens_per_step()), "FLOP a step\n");
}

std::string ranks_text(const RunPlan& p) {
  if (p.grid.world() == 1) return "";
  const int tensor = p.grid.size(Axis::tensor), data = p.grid.size(Axis::data);
  std::string out = text("ranks      rank = t + ", tensor, " x (d + ", data, " x p)\n");
  if (p.grid.world() > shown_ranks) return out;
  TextTable table;
  for (int stage = 0; stage < p.grid.size(Axis::pipeline); ++stage)
    for (int d = 0; d < data; ++d) {
      std::vector<std::string> row{text("p ", stage, "  d ", d, "  t 0-", tensor - 1, ":")};
      for (int t = 0; t < tensor; ++t)
        row.push_back(std::to_string(t + tensor * (d + data * stage)));
      table.row(row);
    }
  return out + table.text("           ");
}

std::string memory_text(const RunPlan& p) {
  TextTable table;
  table.row({"stage", "ranks", "layers", "in flight", "parameters", "weights", "gradients", "optimizer",
             "activations", "scratch", "communication", "total"});
  const int64_t ranks = p.grid.world() / p.grid.size(Axis::pipeline);
  for (size_t i = 0; i < p.stages.size(); ++i) {
    const StagePlan& s = p.stages[i];
    const MemoryPlan& m = s.memory;
    table.row({std::to_string(i), range_of(static_cast<int64_t>(i) * ranks, ranks), layers_of(s), slots_of(s),
               with_commas(s.parameters), human_bytes(m.weights), human_bytes(m.gradients),
               human_bytes(m.optimizer), human_bytes(m.activations), human_bytes(m.scratch),
               human_bytes(m.communication), human_bytes(m.total())});
  }
  const size_t most = p.fullest();
  return text("memory     ", memory_line(p.stages[most].memory),
              p.grid.world() > 1 ? text(" (rank ", static_cast<int64_t>(most) * ranks, ")") : "", "\n") +
         table.text("           ");
}

// Long schedules repeat themselves: their first microbatches are shown.
std::string schedule_text(const RunPlan& p) {
  if (p.schedule.stages == 1) return "";
  int shown = std::max(shown_microbatches, 2 * p.schedule.stages);
  shown -= shown % p.schedule.stages;  // what an interleaved schedule needs
  const bool whole = p.schedule.microbatches <= shown;
  const Schedule part =
      whole ? p.schedule : make_schedule(p.schedule.kind, p.schedule.stages, p.schedule.chunks, shown);
  std::string table = table_of(part);
  table.erase(table.rfind("bubble"));
  return text("schedule   ", name_of(p.schedule.kind), ", ", p.schedule.stages, " stages, ",
              p.schedule.microbatches, " microbatches, bubble ", fixed(p.bubble * 100, 1),
              "% of the ideal time", whole ? "" : text("; shown with ", shown, " microbatches"), "\n", table);
}

// What crosses the tensor axis, as train/plan.cpp counts it.
std::string tensor_formula(const RunConfig& config) {
  const bool again = config.train.recompute == Recompute::block;
  if (!config.parallel.sequence)
    return text("           tensor: 2(n-1)/n x microbatches x ([tokens, channels] x (", again ? 5 : 4,
                " a block + 1 embedding + 1 head) + 3 [tokens] of the head)\n");
  return text("           tensor: (n-1)/n x microbatches x ([tokens, channels] x (", again ? 13 : 10,
              " a block + 2 embedding + 2 head) + 6 [tokens] of the head)",
              " + 2(n-1)/n x gradients of norms, residual biases and positions\n");
}

std::string traffic_text(const RunPlan& p) {
  if (p.grid.world() == 1) return "";
  TextTable table;
  table.row({"stage", "tensor", "data", "pipeline"});
  for (size_t i = 0; i < p.stages.size(); ++i) {
    const StagePlan& s = p.stages[i];
    const auto bytes = [](const AxisTraffic& t) { return human_bytes(static_cast<uint64_t>(t.sent)); };
    table.row({std::to_string(i), bytes(s.tensor), bytes(s.data), bytes(s.pipeline)});
  }
  std::string out = "traffic    sent by a rank in a step, over each axis (n ranks in the group):\n" +
                    table.text("           ");
  if (p.grid.size(Axis::tensor) > 1) out += tensor_formula(p.config);
  if (p.grid.size(Axis::data) > 1)
    out += p.config.parallel.zero > 0
               ? "           data: (n-1)/n x (gradients, scattered + weights, gathered)\n"
               : "           data: 2(n-1)/n x gradients\n";
  if (p.grid.size(Axis::pipeline) > 1)
    out += text("           pipeline: [tokens", p.config.parallel.sequence ? " / tensor" : "",
                ", channels] for each microbatch and stage border, there and back",
                p.config.model.tied ? "; the first and last stage also the tied embedding's gradient" : "",
                "\n");
  return out;
}

std::string time_text(const RunPlan& p, const Hardware& h) {
  const StepTime& t = p.time;
  TextTable table;
  const auto row = [&table](const char* name, double seconds, const char* formula) {
    if (seconds > 0)
      table.row(
          {text(name, std::string(10 - std::string(name).size(), ' '), formula), milliseconds(seconds)});
  };
  row("compute", t.compute, "FLOPs of the rank, recomputation included / peak");
  row("memory", t.memory,
      "microbatches x (3 x weights + 4 x activations of a microbatch) / memory bandwidth");
  row("tensor", t.tensor, "sent / link");
  row("bubble", t.bubble, "(compute + memory + tensor) x bubble");
  row("pipeline", t.pipeline, "sent / link");
  row("data", t.data, "sent / link");
  row("optimizer", t.optimizer, "(2 x gradients + 2 x optimizer + weights) / memory bandwidth");
  return text("time       ", milliseconds(t.total()), " a step, ",
              with_commas(static_cast<int64_t>(p.tokens_per_step() / t.total())), " tokens/s, MFU ",
              fixed(p.mfu * 100, 1), "%, if matrix products run at the peak of ", with_prefix(h.peak_flops),
              "FLOP/s,\n           memory at ", with_prefix(h.memory_bandwidth), "B/s, links at ",
              with_prefix(h.link_bandwidth), "B/s, and nothing overlaps; the slowest stage's:\n") +
         table.text("           ");
}

std::string run_text(const RunPlan& p, std::optional<int64_t> samples) {
  const int64_t steps = p.config.train.steps;
  const double seen = static_cast<double>(p.config.train.batch) * static_cast<double>(steps);
  std::string line = text("run        ", with_commas(steps), " steps, ",
                          with_prefix(p.tokens_per_step() * static_cast<double>(steps)),
                          "tokens: ", human_seconds(p.time.total() * static_cast<double>(steps)));
  if (samples) line += text(", ", fixed(seen / static_cast<double>(*samples), 2), " epochs");
  return line + "\n";
}

}  // namespace

std::string text_of(const RunPlan& plan, const Hardware& hardware, std::optional<int64_t> samples) {
  return head_text(plan) + ranks_text(plan) + memory_text(plan) + schedule_text(plan) + traffic_text(plan) +
         time_text(plan, hardware) + run_text(plan, samples);
}

}  // namespace hearth
