#include "parallel/pipeline.h"

#include <algorithm>

namespace hearth {

int slots_of(const Schedule& schedule, int stage, int chunk) {
  int held = 0, most = 1;
  std::vector<bool> arrived(static_cast<size_t>(schedule.microbatches), false);
  const auto arrive = [&](int microbatch) {
    if (arrived[static_cast<size_t>(microbatch)]) return;
    arrived[static_cast<size_t>(microbatch)] = true;
    most = std::max(most, ++held);
  };
  for (const Action& action : schedule.actions[static_cast<size_t>(stage)]) {
    for (const StageTransfer& t : action.transfers)
      if (!t.sends && !t.gradient && t.chunk == chunk) arrive(t.microbatch);
    if (action.kind == Action::Kind::exchange || action.chunk != chunk) continue;
    if (action.kind == Action::Kind::forward) arrive(action.microbatch);
    if (action.kind == Action::Kind::backward) --held;
  }
  return most;
}

StageOptions chunk_options(const ModelConfig& model, const PipelineOptions& options, const Grid& grid,
                           int chunk) {
  const int stages = grid.size(Axis::pipeline);
  const Range layers = layers_of(model.layers, stages, options.chunks, grid.at(Axis::pipeline), chunk);
  const Schedule schedule = make_schedule(options.schedule, stages, options.chunks, options.microbatches);
  StageOptions stage = options.stage;
  stage.first_layer = layers.begin;
  stage.layers = layers.count;
  stage.slots = slots_of(schedule, grid.at(Axis::pipeline), chunk);
  stage.shard = {grid.at(Axis::tensor), grid.size(Axis::tensor)};
  stage.sequence = options.stage.sequence && stage.shard.size > 1;
  return stage;
}

Pipeline::Pipeline(const ModelConfig& model, const PipelineOptions& options, const Schedule& schedule,
                   Device& device, ParameterSet& parameters, const ProcessGroups& groups)
    : model_(model), groups_(groups), schedule_(schedule) {
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    const StageOptions stage = chunk_options(model, options, groups.grid, chunk);
    slots_.push_back(stage.slots);
    stages_.push_back(std::make_unique<Stage>(model, stage, device, parameters, *groups.tensor));
  }
}

void Pipeline::clear_loss() {
  for (const auto& stage : stages_)
    stage->clear_loss();
}

namespace {

std::vector<Microbatch> microbatches_of(std::span<const HostBatch> batches, int64_t first_sample,
                                        int64_t time, bool train) {
  std::vector<Microbatch> microbatches;
  for (const HostBatch& host : batches)
    microbatches.push_back({host.first_sample - first_sample, host.rows, time, train});
  return microbatches;
}

}  // namespace

void Pipeline::train(std::span<const HostBatch> batches, int64_t first_sample,
                     const std::function<void(int64_t)>& layer_done) {
  run(schedule_, batches, microbatches_of(batches, first_sample, model_.context, true), layer_done);
}

Schedule Pipeline::forward_only(int64_t microbatches) const {
  return make_schedule(ScheduleKind::forward_only, schedule_.stages, static_cast<int>(stages_.size()),
                       static_cast<int>(microbatches));
}

void Pipeline::evaluate(std::span<const HostBatch> batches) {
  run(forward_only(static_cast<int64_t>(batches.size())), batches,
      microbatches_of(batches, 0, model_.context, false), {});
}

Tensor Pipeline::predict(const std::vector<int32_t>& tokens, int64_t row) {
  const HostBatch host{0, 1, tokens, {}};
  const Microbatch microbatch{0, 1, static_cast<int64_t>(tokens.size()), false, false};
  run(forward_only(1), {&host, 1}, {&microbatch, 1}, {});
  return last_stage() ? stages_.back()->logits(microbatch, row) : Tensor{};
}

void Pipeline::run(const Schedule& schedule, std::span<const HostBatch> batches,
                   std::span<const Microbatch> microbatches, const std::function<void(int64_t)>& layer_done) {
  check(static_cast<int>(batches.size()) == schedule.microbatches, "got ", batches.size(),
        " microbatches for a ", "schedule of ", schedule.microbatches);
  for (const Action& action : schedule.actions[static_cast<size_t>(groups_.grid.at(Axis::pipeline))]) {
    Stage& stage = *stages_[static_cast<size_t>(action.chunk)];
    const size_t m = static_cast<size_t>(action.microbatch);
    const int slot = this->slot(action.chunk, action.microbatch);
    switch (action.kind) {
      case Action::Kind::forward:
        if (stage.first() || stage.last())
          stage.set_input(slot, microbatches[m], batches[m].tokens, batches[m].targets);
        stage.forward(slot, microbatches[m]);
        break;
      case Action::Kind::backward:
        stage.backward(slot, microbatches[m],
                       action.last_backward ? layer_done : std::function<void(int64_t)>{});
        break;
      case Action::Kind::exchange:
        exchange(action, microbatches);
        break;
    }
  }
}

// All transfers of an exchange start together and end together.
void Pipeline::exchange(const Action& action, std::span<const Microbatch> microbatches) {
  std::vector<Transfer> transfers;
  for (const StageTransfer& t : action.transfers) {
    Stage& stage = *stages_[static_cast<size_t>(t.chunk)];
    const Microbatch& batch = microbatches[static_cast<size_t>(t.microbatch)];
    const int slot = this->slot(t.chunk, t.microbatch);
    Tensor tensor;
    if (t.gradient)
      tensor = t.sends ? stage.d_input(batch) : stage.d_output(batch);
    else
      tensor = t.sends ? stage.output(slot, batch) : stage.input(slot, batch);
    transfers.push_back({t.sends ? Transfer::Direction::send : Transfer::Direction::receive, tensor, t.peer});
  }
  groups_.pipeline->exchange(transfers).wait();
}

}  // namespace hearth
