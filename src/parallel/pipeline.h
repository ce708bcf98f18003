// Pipeline: runs this rank's part of a schedule on its stages.
//
// The engine is a switch over actions.  A microbatch occupies a slot of a stage from the moment its input
// arrives (or is embedded) until its backward pass has ended; only activations of the residual stream and
// their gradients travel.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "data/loader.h"
#include "device/device.h"
#include "model/stage.h"
#include "parallel/process_groups.h"
#include "parallel/schedule.h"
#include "parallel/split.h"

namespace hearth {

// What decides the pipeline of a run.
struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;        // parts of the model that one rank holds ("virtual stages")
  int microbatches = 1;  // per step and rank
  StageOptions stage;    // first_layer, layers, slots and shard are filled in
};

// Options of chunk `chunk` of the stage at this place of the grid.
StageOptions chunk_options(const ModelConfig& model, const PipelineOptions& options, const Grid& grid,
                           int chunk);
// The most microbatches that a chunk of this stage holds at a time.
int slots_of(const Schedule& schedule, int stage, int chunk);

class Pipeline {
 public:
  // `parameters` must hold the parameters of all chunks; `schedule` is what train() runs.
  Pipeline(const ModelConfig& model, const PipelineOptions& options, const Schedule& schedule, Device& device,
           ParameterSet& parameters, const ProcessGroups& groups);

  // Forward and backward of one step.  `layer_done(l)` is called in the last backward pass, when the
  // gradients of block l (and of all later blocks of its chunk) are complete.
  void train(std::span<const HostBatch> batches, int64_t first_sample,
             const std::function<void(int64_t)>& layer_done);
  // Forward only.
  void evaluate(std::span<const HostBatch> batches);
  // Forward only, of one sequence: on the last stage, the logits after token `row`, of this rank's part of
  // the vocabulary, [1, V], valid until the next pass; absent on the others.
  Tensor predict(const std::vector<int32_t>& tokens, int64_t row);

  bool first_stage() const { return groups_.grid.first(Axis::pipeline); }
  bool last_stage() const { return groups_.grid.last(Axis::pipeline); }

  void clear_loss();
  // f64 [1]: the sum of token losses of this rank; on the last stage only it is more than zero.
  const Tensor& loss_total() const { return stages_.back()->loss_total(); }

 private:
  void run(const Schedule& schedule, std::span<const HostBatch> batches,
           std::span<const Microbatch> microbatches, const std::function<void(int64_t)>& layer_done);
  Schedule forward_only(int64_t microbatches) const;
  void exchange(const Action& action, std::span<const Microbatch> microbatches);
  int slot(int chunk, int microbatch) const { return microbatch % slots_[static_cast<size_t>(chunk)]; }

  const ModelConfig model_;
  const ProcessGroups& groups_;
  Schedule schedule_;
  std::vector<int> slots_;                      // by chunk
  std::vector<std::unique_ptr<Stage>> stages_;  // by chunk
};

}  // namespace hearth
