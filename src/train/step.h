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
#include "parallel/optimizer.h"
#include "parallel/partial_sums.h"
#include "parallel/pipeline.h"
#include "parallel/process_groups.h"
#include "parallel/replicas.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/gradient_dump.h"

namespace hearth {

// What a rank wants, or all ranks do: any rank's wish is everybody's,
// and TERM goes before INT before the rest.
enum class StopWish : uint8_t { none, early, interrupt, terminate };

struct StepInput {
  int64_t first_sample = 0;  // the run's index of the step's first sample
  double learning_rate = 0;
  int64_t optimizer_step = 1;  // AdamW's t of this update, from 1
  StopWish wish = StopWish::none;
};

struct StepResult {
  double loss = 0;                 // mean over the valid tokens of all microbatches, before the update
  double grad_norm = 0;            // before clipping
  bool finite = true;              // false: nothing was updated
  StopWish stop = StopWish::none;  // of any rank
};

struct EvaluationResult {
  std::optional<double> loss;  // nothing when a stop was wished for meanwhile
  StopWish stop = StopWish::none;
};

// The tables that decide what a rank does.
struct StepTables {
  std::vector<ParamSpec> parameters;
  Schedule schedule;
};
StepTables step_tables(const RunConfig& config, const Grid& grid);

class StepRunner {
 public:
  // `groups` must outlive the runner; every rank makes one, and calls the same functions in the same order.
  StepRunner(const RunConfig& config, Device& device, const ProcessGroups& groups)
      : StepRunner(config, device, groups, step_tables(config, groups.grid)) {}
  // With other tables than step_tables() gives: for tests of what they decide.
  StepRunner(const RunConfig& config, Device& device, const ProcessGroups& groups, const StepTables& tables);

  // The memory that the constructor would allocate on the rank at this place of the grid.  What a GPU's
  // operations need besides is known only with the device.
  static MemoryPlan plan(const RunConfig& config, const Grid& grid, const Device* device = nullptr);

  const ParameterSet& parameters() const { return parameters_; }
  const Optimizer& optimizer() const { return optimizer_; }

  // Initial weights, as functions of the seed.
  void initialize();

  // One optimizer step over this rank's `microbatches`: microbatch j of data rank d holds `rows` samples from
  // first_sample + (j * D + d) * rows on.
  // `on_gradients` is called between backward and update (may be empty).
  StepResult run(const StepInput& input, const std::vector<HostBatch>& microbatches,
                 const std::function<void()>& on_gradients = {});

  // Mean loss over the first `tokens` tokens (0 = all) of a dataset, in whole samples.  Changes no training
  // state. `wish` is asked after every pass through the pipeline.
  EvaluationResult evaluate(const Dataset& dataset, int64_t tokens, const std::function<StopWish()>& wish);

  // What all ranks do when this one wishes for `mine`.  All ranks call it.
  StopWish agree(StopWish mine);
  // For passes without a loss (SplitDecoder), between steps.
  Pipeline& pipeline() { return pipeline_; }

  // The first tensor whose copies differ between ranks, if any: the same answer on all ranks.
  std::optional<OddReplica> odd_replica();
  // Whether all weights of all ranks are finite.
  bool weights_finite();
  // Every tensor of the training state that this rank writes, as pieces of global tensors: each element is
  // written by one rank.
  std::vector<CheckpointPiece> checkpoint_pieces() const;
  // The same of the gradients, between backward and update.
  std::vector<GradientPiece> gradient_pieces() const;
  // Loads all tensors of the training state and sets the compute weights.
  void load(const CheckpointReader& checkpoint);

 private:
  void set_step_params(const StepParams& params);
  void sum_tied_gradients();
  void add_loss();
  const Tensor& clear_totals();

  double count_valid(const std::vector<HostBatch>& microbatches);
  // Sums over all ranks.  A wish is a digit of a number, so that wishes of different kinds can be told apart.
  struct Totals {
    double loss;
    double squares;
    double wishes;
  };
  Totals reduce_totals(StopWish wish);
  bool counts(const ParamSpec& spec) const;
  std::vector<CheckpointPiece> all_pieces() const;

  const RunConfig config_;
  Device& device_;
  const ProcessGroups& groups_;
  ParameterSet parameters_;
  Optimizer optimizer_;
  PartialSums partial_sums_;
  Pipeline pipeline_;
  Buffer scalars_;
  Buffer tied_buffer_;
  Tensor tied_gradient_;  // of the copy of the embedding on the other end of the pipeline
  Tensor totals_;         // f64 [3], see Totals
  Tensor step_params_;
};

// The parameters of all chunks of the rank at this place of the grid, in table order.
std::vector<ParamSpec> rank_parameters(const RunConfig& config, const Grid& grid);
PipelineOptions pipeline_options(const RunConfig& config, const Grid& grid);

// Sequences of one forward pass: train.micro_batch, or the whole batch.
inline int64_t micro_batch_of(const TrainConfig& train) {
  return train.micro_batch > 0 ? train.micro_batch : train.batch;
}

// Sets train.micro_batch where it is 0: an equal share of the batch for each data-parallel rank.  Throws
// Error(usage) when the batch is not a multiple of the samples that all ranks take at a time.
void settle_micro_batch(TrainConfig& train, int64_t data_ranks);

}  // namespace hearth
