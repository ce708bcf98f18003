#include "train/report.h"

#include <cstdio>

#include "base/text.h"
#include "train/step.h"

namespace hearth {

std::string model_line(const ModelConfig& m) {
  std::string line = text(m.layers, " layers, ", m.heads, " heads, ", m.channels, " channels, context ",
                          m.context, ", vocabulary ", with_commas(m.vocab));
  if (m.padded_vocab() != m.vocab) line += text(" (padded to ", with_commas(m.padded_vocab()), ")");
  line += text(", ", m.activation, ", ", m.norm, m.bias ? ", biases" : ", no biases",
               m.tied ? ", tied head" : ", untied head");
  if (m.dropout > 0) line += text(", dropout ", m.dropout);
  return line;
}

std::string batch_line(const RunConfig& c, const Grid& grid) {
  const int64_t micro = micro_batch_of(c.train);
  const int64_t tokens = c.train.batch * c.model.context;
  const int64_t ranks = grid.size(Axis::data);
  const int64_t microbatches = c.train.batch / (micro * ranks);
  return text("microbatch of ", micro, " sequences x ", c.model.context, " tokens x ", microbatches,
              microbatches == 1 ? " microbatch" : " microbatches", " x ", ranks,
              ranks == 1 ? " rank" : " data ranks", " = ", with_commas(tokens), " tokens a step; ",
              with_commas(c.train.steps), " steps = ", with_commas(tokens * c.train.steps), " tokens");
}

std::string layout_line(const RunConfig& c, const Grid& grid) {
  if (grid.world() == 1) return "one process";
  return text(grid.world(), " ranks = tensor ", grid.size(Axis::tensor),
              c.parallel.sequence ? " (sequence parallel)" : "", " x data ", grid.size(Axis::data),
              " x pipeline ", grid.size(Axis::pipeline), ", schedule ", c.parallel.schedule, ", zero ",
              c.parallel.zero);
}

namespace {

std::string epochs(const RunConfig& c, const Corpus& corpus) {
  char number[32];
  const double seen = static_cast<double>(c.train.batch * c.train.steps);
  std::snprintf(number, sizeof number, "%.2f", seen / static_cast<double>(corpus.train.samples()));
  return number;
}

std::string optimizer_line(const OptimizerConfig& o) {
  const char* schedules[] = {"constant", "linear", "cosine", "wsd"};
  return text("AdamW, lr ", o.lr, " -> ", o.schedule == LrSchedule::constant ? o.lr : o.min_lr, " (",
              schedules[static_cast<int>(o.schedule)], ", warm-up ", o.warmup, " steps), betas ", o.beta1,
              " ", o.beta2, ", weight decay ", o.weight_decay, ", clip ", o.clip);
}

std::string device_line(const DeviceConfig& wanted, const Device& device) {
  const auto why_no_gpu = wanted.kind == "auto" ? cuda_unavailable() : std::nullopt;
  return device.description() + (why_no_gpu ? "; not a GPU: " + *why_no_gpu : "");
}

}  // namespace

std::string memory_line(const MemoryPlan& m) {
  return text(human_bytes(m.total()), " = weights ", human_bytes(m.weights), " + gradients ",
              human_bytes(m.gradients), " + optimizer ", human_bytes(m.optimizer), " + activations ",
              human_bytes(m.activations), " + scratch ", human_bytes(m.scratch), " + communication ",
              human_bytes(m.communication));
}

std::string precision_line(const TrainConfig& t) {
  return text(name_of(t.precision), ", recompute ", name_of(t.recompute), ", seed ", t.seed);
}

std::vector<std::string> start_report(const RunConfig& config, const Grid& grid, const Corpus& corpus,
                                      const Device& device, const MemoryPlan& memory,
                                      const std::string& resume) {
  return {
      text("model      ", model_line(config.model)),
      text("parameters ", with_commas(parameter_count(config.model))),
      text("data       ", corpus.description, ", fingerprint ", corpus.train.fingerprint().substr(0, 12)),
      text("batch      ", batch_line(config, grid), ", ", epochs(config, corpus), " epochs"),
      text("optimizer  ", optimizer_line(config.optimizer)),
      text("precision  ", precision_line(config.train)),
      text("device     ", device_line(config.device, device)),
      text("layout     ", layout_line(config, grid)),
      text("memory     ", memory_line(memory), grid.world() > 1 ? " (rank 0)" : ""),
      text("start      ", resume),
  };
}

}  // namespace hearth
