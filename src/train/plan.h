// `hearth plan`: what a run will need and how long it may take, in any layout, without any device.
//
// Memory is not estimated: StepRunner::plan runs the functions that lay the memory out; only what a GPU's
// operations need besides their operands, some tens of MiB, is left to the run's start.  Traffic is counted
// from the same tables and schedules that the run uses.  Only the time is a model, written down at StepTime.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/grid.h"
#include "model/parameters.h"
#include "parallel/schedule.h"
#include "parallel/split.h"
#include "train/config.h"

namespace hearth {

// What the time is predicted from; by default an H100 SXM and its NVLink, by the datasheet.
struct Hardware {
  double peak_flops = 989.5e12;      // dense bf16, FLOP/s of one rank
  double memory_bandwidth = 3350e9;  // bytes/s of one rank's memory
  double link_bandwidth = 450e9;     // bytes/s that one rank can send
};

// Bytes of one rank over one axis in a training step.
//   payload  the tensors that it gives to collectives: all of an all_reduce's, the input of a reduce_scatter,
//            the output of an all_gather, what an exchange sends
//   sent     what leaves the rank, for a group of n: 2 (n-1)/n of an all_reduce, (n-1)/n of a reduce_scatter
//            or an all_gather, all of an exchange
struct AxisTraffic {
  int64_t payload = 0;
  double sent = 0;

  void all_reduce(int64_t bytes, int group);
  void part(int64_t bytes, int group);  // half of an all_reduce
  void send(int64_t bytes);
};

// One rank of a stage: all of them are alike, but that ZeRO leaves the last data ranks of a group less.
struct StagePlan {
  std::vector<Range> layers;  // by chunk
  std::vector<int> slots;     // microbatches in flight, by chunk
  int64_t parameters = 0;     // that the rank holds, padding included
  MemoryPlan memory;
  AxisTraffic tensor, data, pipeline;
  double flops = 0;          // model FLOPs of the rank in a step (see flops_per_token)
  double recomputed = 0;     // FLOPs that the recompute policy adds
  uint64_t activations = 0;  // bytes that one microbatch's forward pass writes
};

// Predicted seconds of a step, without any overlap of computing and communicating and with matrix products at
// the peak.  W, G, O: bytes of weights, gradients and optimizer state, A: activations of a microbatch, M:
// microbatches, all of one rank; the slowest stage counts.
struct StepTime {
  double compute = 0;   // (model FLOPs + recomputed) / peak
  double memory = 0;    // M (3 W + 4 A) / memory bandwidth: weights are read 3 times, activations written and
                        // read forwards, read and their gradients written backwards
  double tensor = 0;    // sent / link
  double bubble = 0;    // (compute + memory + tensor) x the schedule's bubble
  double pipeline = 0;  // sent / link
  double data = 0;      // sent / link
  double optimizer = 0;  // (2 G + 2 O + W) / memory bandwidth
  double total() const { return compute + memory + tensor + bubble + pipeline + data + optimizer; }
};

struct RunPlan {
  RunConfig config;  // with the microbatch that the layout decides
  Grid grid;         // rank 0's
  int64_t microbatches = 0;
  std::vector<StagePlan> stages;
  Schedule schedule;
  double bubble = 0;
  StepTime time;
  double mfu = 0;

  double tokens_per_step() const;
  // The stage whose ranks need the most memory.
  size_t fullest() const;
};

// Throws Error(usage) for a layout that cannot be.  model.vocab must be known.
RunPlan plan_run(const RunConfig& config, int64_t world, const Hardware& hardware);

// The plan as lines for people.  `samples` of an epoch, when the corpus is known.
std::string text_of(const RunPlan& plan, const Hardware& hardware, std::optional<int64_t> samples);

}  // namespace hearth
