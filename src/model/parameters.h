// The ParamSpec table: every parameter of a GPT, described once.
//
// Allocation, initialisation, gradient reduction, the norm, AdamW, checkpoints and counting all walk this
// table; there is no second place that knows the parameters.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "device/ops.h"
#include "model/config.h"
#include "model/sharding.h"
#include "tensor/arena.h"

namespace hearth {

enum class Init : uint8_t { zeros, ones, normal };

struct ParamSpec {
  std::string name;    // "h.3.attn.q.weight"
  Shape shape;         // of the whole model, padded vocabulary included
  uint64_t id = 0;     // stream of the initialisation: the place in the whole model's table
  int64_t layer = -1;  // block it belongs to; -1: before the blocks, layers: after them
  int shard_dim = -1;  // dimension split over the tensor-parallel axis; -1: every rank holds a copy
  bool partial_under_sequence =
      false;               // replicated, but its gradient is a partial sum under sequence parallelism
  bool tied_head = false;  // also used by the last stage as the LM head
  bool fused_with_previous = false;  // lies directly behind the previous parameter in memory (q | k | v)
  Init init = Init::zeros;
  double init_std = 0.0;
  int64_t init_rows = -1;  // rows from here on are padding: zero, and stay zero; -1 = none
  bool decay = false;      // weight decay: matrices and embeddings, not biases and norms
  std::string hf_name;     // name in a Hugging Face GPT-2 file
  bool hf_transpose = false;
  int hf_part = -1;  // third of the fused c_attn tensor; -1 = the whole tensor
};

// The table of the whole model, in storage order.
std::vector<ParamSpec> parameter_table(const ModelConfig& model);
// Trainable parameters, padding not counted, tied weights once.
int64_t parameter_count(const ModelConfig& model);

// The rows of the table that a range of blocks needs: with the first block also the embeddings, with the last
// one also the final norm and the head (the token embedding, when they are tied).
std::vector<ParamSpec> stage_parameters(const ModelConfig& model, int64_t first_layer, int64_t layers);

// One parameter as this process holds it.
struct Parameter {
  ParamSpec spec;
  Rectangle local;  // its part of the whole tensor
  Tensor weight;    // compute type
  Tensor grad;      // master type; accumulated into; absent for inference
};

// Memory by class, for the plan and the start-up report.  Bytes.
struct MemoryPlan {
  uint64_t weights = 0;  // compute weights
  uint64_t gradients = 0;
  uint64_t optimizer = 0;      // master weights (when separate) and the two moments
  uint64_t activations = 0;    // slots of the microbatches in flight
  uint64_t scratch = 0;        // gradients of activations, logits chunk
  uint64_t communication = 0;  // buckets
  uint64_t total() const { return weights + gradients + optimizer + activations + scratch + communication; }
};

// The weights and gradients that one process holds: owns their memory.  Master weights and moments belong to
// the optimizer (parallel/optimizer.h).
class ParameterSet {
 public:
  enum class Purpose : uint8_t { training, inference };

  ParameterSet(Device& device, std::vector<ParamSpec> specs, Precision precision, Purpose purpose,
               TensorShard shard = {});

  // Adds the bytes that the constructor would allocate,
  // and returns the parameters as far as they have no memory.
  static std::vector<Parameter> plan(const std::vector<ParamSpec>& specs, Precision precision,
                                     Purpose purpose, TensorShard shard, MemoryPlan& plan);

  const std::vector<Parameter>& all() const { return parameters_; }
  Precision precision() const { return precision_; }
  // By name; a programming error when there is none.
  const Parameter& at(std::string_view name) const;
  // By name, or null (biases of a model without).
  const Parameter* find(std::string_view name) const;

  void clear_gradients();

 private:
  static void carve(std::vector<Parameter>& parameters, Precision precision, Purpose purpose, Carver& weights,
                    Carver& gradients);

  Device& device_;
  Precision precision_;
  std::vector<Parameter> parameters_;
  std::map<std::string, size_t, std::less<>> index_;
  Buffer weights_, gradients_;
};

// Writes the initial values of rows [first_row, first_row + rows of `values`) of a parameter's local part:
// functions of (seed, tensor id, index in the whole tensor).  `values` is contiguous, of master type.
void write_initial_values(Device& device, const Parameter& parameter, uint64_t seed, int64_t first_row,
                          const Tensor& values);

}  // namespace hearth
