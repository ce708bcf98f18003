// Everything a run can be told, as plain structs with defaults.  The schema table in cli/ gives each field
// its key, range and help text.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "data/dataset.h"
#include "device/device.h"
#include "device/ops.h"
#include "model/config.h"
#include "tensor/dtype.h"

namespace hearth {

struct TrainConfig {
  int64_t steps = 1000;
  int64_t stop_after = 0;   // steps of this process, then save and exit 75; 0 = no limit
  double max_minutes = 0;   // wall time of this process, then save and exit 75; 0 = no limit
  int64_t batch = 8;        // sequences per optimizer step, over all ranks
  int64_t micro_batch = 0;  // sequences per forward pass; 0 = the whole batch
  uint64_t seed = 1337;
  Precision precision = Precision::fp32;
  Recompute recompute = Recompute::none;
  int64_t max_skipped = 5;  // non-finite steps in a row before the run stops with exit 70
};

enum class LrSchedule : uint8_t { constant, linear, cosine, wsd };

struct OptimizerConfig {
  double lr = 6e-4;
  double min_lr = 0.0;  // value at the last step (linear, cosine, wsd)
  int64_t warmup = 0;   // steps of linear warm-up from 0
  LrSchedule schedule = LrSchedule::cosine;
  // Where the decay ends (linear, cosine); 0 = train.steps.  wsd: length of the final decay.
  int64_t decay_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  // 0 = no clipping
};

struct ParallelConfig {
  int64_t data = -1;  // -1 = what the other axes leave
  int64_t tensor = 1;
  int64_t pipeline = 1;
  bool sequence = false;  // the residual stream is split by rows over the tensor axis
  int64_t zero = 0;
  std::string schedule = "1f1b";
  int64_t virtual_stages = 1;
  std::string transport = "auto";
  double timeout = 60;
  double init_timeout = 300;
  int64_t check_every = 100;  // steps between comparisons of weights' copies (parallel/replicas.h); 0 = never
};

struct EvalConfig {
  int64_t every = 0;   // steps; 0 = never.  Also after the last step
  int64_t tokens = 0;  // first tokens of the validation split; 0 = all of it
};

struct SampleConfig {
  int64_t every = 0;  // steps; 0 = never
  std::string prompt = "\n";
  int64_t tokens = 200;
};

struct CheckpointConfig {
  int64_t every = 0;               // steps; 0 = only at the end and when the run is stopped
  int64_t keep = 2;                // newest checkpoints kept (the best one is kept besides)
  std::string resume = "auto";     // auto | none | a checkpoint folder
  bool allow_data_change = false;  // resume although the data is not what the checkpoint was trained on
};

struct LogConfig {
  int64_t every = 10;
  bool tensorboard = true;
};

struct RunInfo {
  std::string dir;   // empty: runs/NAME
  std::string name;  // empty: the config file's name
};

struct DebugConfig {
  std::string dump_gradients;  // folder: every named gradient of each step as safetensors
};

struct RunConfig {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  DeviceConfig device;
  EvalConfig eval;
  SampleConfig sample;
  CheckpointConfig checkpoint;
  LogConfig log;
  RunInfo run;
  DebugConfig debug;
};

// Every effective value as "section.key" -> TOML literal, made by the schema.  Stored in checkpoints.
using ConfigValues = std::map<std::string, std::string>;

}  // namespace hearth
