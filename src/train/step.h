// The training step: accumulate gradients over microbatches, take their norm, clip, update.
//
// StepRunner owns everything on the device that a run has: parameters, optimizer state, activations.  It
// knows nothing of files, logs or signals; the trainer loop does.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "data/loader.h"
#include "device/device.h"
#include "model/parameters.h"
#include "model/stage.h"
#include "train/checkpoint.h"
#include "train/config.h"

namespace hearth {

struct StepInput {
  int64_t first_sample = 0;  // the run's index of the step's first sample
  double learning_rate = 0;
  int64_t optimizer_step = 1;  // AdamW's t of this update, from 1
};

struct StepResult {
  double loss = 0;       // mean over the valid tokens of all microbatches, before the update
  double grad_norm = 0;  // before clipping
  bool finite = true;    // false: nothing was updated
};

class StepRunner {
 public:
  StepRunner(const RunConfig& config, Device& device);

  // The memory that the constructor would allocate.
  static MemoryPlan plan(const RunConfig& config);

  ParameterSet& parameters() { return parameters_; }

  // One optimizer step over `microbatches`, which hold samples first_sample, first_sample + 1, ... in order.
  // `on_gradients` is called between backward and update (may be empty).
  StepResult run(const StepInput& input, const std::vector<HostBatch>& microbatches,
                 const std::function<void()>& on_gradients = {});

  // Mean loss over the first `tokens` tokens (0 = all) of a dataset, in whole samples.  Changes no training
  // state. Returns nothing when `stop` became true.
  std::optional<double> evaluate(const Dataset& dataset, int64_t tokens, const std::function<bool()>& stop);

  // Every tensor of the training state, as pieces of global tensors.
  std::vector<CheckpointPiece> checkpoint_pieces() const;
  // Loads all of them and sets the compute weights.
  void load(const CheckpointReader& checkpoint);

 private:
  void set_step_params(const StepParams& params);
  void accumulate(int64_t first_sample, const std::vector<HostBatch>& microbatches);
  double read_scalar(const Tensor& scalar) const;

  const RunConfig config_;
  Device& device_;
  SelfCommunicator self_;
  ParameterSet parameters_;
  Stage stage_;
  Buffer scalars_;
  Tensor norm_total_;  // f64 [1]
  Tensor step_params_;
  StepParams host_params_;
};

// Mean loss of the first `tokens` tokens (0 = all) of a dataset, in whole samples and batches of `rows`;
// nothing when `stop` (may be empty) became true.  Uses slot 0 and loss_total() of the stage.
std::optional<double> evaluate_stage(Stage& stage, Device& device, const Dataset& dataset, int64_t tokens,
                                     int64_t rows, const std::function<bool()>& stop);

// The stage of a single process: every block, one microbatch in flight.
StageOptions single_stage_options(const RunConfig& config);

// Sequences of one forward pass: train.micro_batch, or the whole batch.
inline int64_t micro_batch_of(const TrainConfig& train) {
  return train.micro_batch > 0 ? train.micro_batch : train.batch;
}

}  // namespace hearth
