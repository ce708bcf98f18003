// The optimizer's state: master weights and moments, whole or split over the data-parallel axis.
//
// Without ZeRO every rank updates all rows of its parameters.  With ZeRO-1 (Rajbhandari et al. 2020) the rows
// of each local tensor are divided into D blocks of ceil(rows / D); a rank keeps master weights and moments
// of its block only, so that every piece of state is a rectangle of a global tensor.
//
// A step:     sum of the gradients over the data axis (all_reduce, or reduce_scatter of blocks), bucket by
//             bucket, beginning while the last backward pass still runs
//          -> (sequence parallelism) sum over the tensor axis of what is partial there (partial_sums.h)
//          -> norm over distinct elements -> AdamW on the own rows -> (ZeRO) all_gather of the weights.
// Everything here is a plain sum: the loss was divided by the number of tokens once, in its gradient.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "device/ops.h"
#include "model/parameters.h"
#include "parallel/buckets.h"

namespace hearth {

// The state of one run of rows of one parameter.
struct OptimizerPiece {
  size_t parameter = 0;             // index in ParameterSet::all()
  int64_t first_row = 0;            // of the local tensor
  Tensor master, moment1, moment2;  // master type, [rows, ...]; master may be the weight itself
  Tensor grad;                      // master type: the summed gradient of these rows
  Tensor weight;  // compute type: where the rounded master goes; absent when it is the master
};

// A bucket of gradients, and the block whose backward pass completes the last of them (-1: the embeddings').
struct GradientBucket {
  Bucket plan;
  int64_t layer;
};

// One bucket in memory.
struct BucketMemory {
  Tensor gradients;      // without ZeRO: the gradients themselves, flat; with it: [D, chunk]
  Tensor own_gradients;  // ZeRO: [chunk]
  Tensor own_weights;    // ZeRO: [chunk], compute type
};

struct OptimizerMemory {
  std::vector<OptimizerPiece> pieces;
  std::vector<BucketMemory> buckets;
  Tensor gathered_weights;  // ZeRO: [D * largest chunk], compute type
};

class Optimizer {
 public:
  // `zero` is 0 or 1, `data` the data-parallel group.
  Optimizer(Device& device, ParameterSet& parameters, int zero, Communicator& data);

  // Adds the bytes that the constructor would allocate.
  static void plan(const std::vector<Parameter>& parameters, Precision precision, int zero, int data_size,
                   MemoryPlan& plan);

  // Bytes of the buckets that one step sums and, with ZeRO, of the weights that it gathers: whole, as every
  // rank of the group gives or gets them.  Gaps between buckets are not counted.
  struct Traffic {
    int64_t summed = 0;
    int64_t gathered = 0;
  };
  static Traffic traffic(const std::vector<Parameter>& parameters, Precision precision, int zero,
                         int data_size);

  const std::vector<OptimizerPiece>& pieces() const { return memory_.pieces; }

  // Whether each rank of the group has its own rows; otherwise all have all.
  bool sharded() const { return sharded_; }

  // Sets masters to their initial values, moments and gradients to zero, and the weights from the masters.
  void initialize(uint64_t seed);
  // Sets the weights of all rows from the masters, on all ranks of the group (after loading a checkpoint).
  void publish_weights();

  // The gradients of blocks >= `layer` are complete: starts the sums that can start.
  void layer_done(int64_t layer);
  // Starts the rest and waits for all of them.
  void finish_reduction();

  // total[0] f64 += the sum of squares of this rank's rows of the parameters for which `owned` is true.
  // Without ZeRO all ranks of the group have the same rows: only the first one may own anything.
  void gradient_sum_of_squares(const Tensor& total, const std::function<bool(const ParamSpec&)>& owned) const;
  // AdamW with the scale and rate of the step params; clears all gradients; publishes the weights.
  void update(const AdamWConfig& config);

 private:
  void clear_padding();
  void start(size_t bucket);
  void pack_gradients(const Bucket& bucket, const Tensor& into);
  void gather_weights();
  void unpack_weights(const Bucket& bucket, const Tensor& from);

  Device& device_;
  ParameterSet& parameters_;
  Communicator& data_;
  const bool sharded_;
  std::vector<GradientBucket> buckets_;
  OptimizerMemory memory_;
  std::vector<std::optional<Request>> pending_;  // by bucket: started in this step
  std::vector<AdamWSegment> segments_;
  Buffer state_, communication_;
};

}  // namespace hearth
