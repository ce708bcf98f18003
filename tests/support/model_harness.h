// A small GPT on any device, with random weights, a batch, and its gradients as plain vectors: what
// whole-model tests compare.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/philox.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "model/parameters.h"
#include "model/stage.h"

namespace hearth::testing {

using Values = std::vector<double>;

// Any floating tensor of a device as doubles on the host.
inline Values to_host(Device& device, const Tensor& t) {
  Values out(static_cast<size_t>(t.elements()));
  const auto convert = [&](auto zero) {
    std::vector<decltype(zero)> raw(out.size());
    device.copy_out(raw.data(), t);
    for (size_t i = 0; i < raw.size(); ++i) {
      if constexpr (std::is_same_v<decltype(zero), bf16>)
        out[i] = static_cast<float>(raw[i]);
      else
        out[i] = raw[i];
    }
  };
  if (t.dtype == DType::f64) convert(0.0);
  if (t.dtype == DType::f32) convert(0.0f);
  if (t.dtype == DType::bf16) convert(bf16{});
  return out;
}

inline double norm_of(const Values& a) {
  double sum = 0;
  for (double x : a)
    sum += x * x;
  return std::sqrt(sum);
}

// ||a - b|| / ||b||, or ||a - b|| where b is zero.
inline double relative_error(const Values& a, const Values& b) {
  Values difference(a.size());
  for (size_t i = 0; i < a.size(); ++i)
    difference[i] = a[i] - b[i];
  const double scale = norm_of(b);
  return norm_of(difference) / (scale > 0 ? scale : 1.0);
}

inline double cosine(const Values& a, const Values& b) {
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i)
    dot += a[i] * b[i];
  return dot / (norm_of(a) * norm_of(b));
}

// A model whose vocabulary is padded, with weights far enough from initialisation
// that every gradient is large.
struct Harness {
  Harness(Device& d, const ModelConfig& m, Precision precision, Recompute recompute = Recompute::none,
          int64_t rows = 2, int64_t time = 0, size_t logits_bytes = 0)
      : device(d),
        model(m),
        parameters(d, parameter_table(m), precision, ParameterSet::Purpose::training),
        stage(m, options(m, precision, recompute, rows, time, logits_bytes), d, parameters, self),
        params_buffer(d, sizeof(StepParams)) {
    d.ops().set_step_params(static_cast<const StepParams*>(params_buffer.data()));
    set_step({});
    initialize(7);
  }

  static StageOptions options(const ModelConfig& m, Precision precision, Recompute recompute, int64_t rows,
                              int64_t time, size_t logits_bytes = 0) {
    StageOptions o;
    o.layers = m.layers;
    o.rows = rows;
    o.time = time ? time : m.context;
    o.precision = precision;
    o.recompute = recompute;
    o.seed = 11;
    if (logits_bytes) o.logits_bytes = logits_bytes;
    return o;
  }

  void set_step(const StepParams& params) {
    host_params = params;
    device.copy_in(Tensor(params_buffer.data(), DType::u8, {sizeof(StepParams)}), &host_params);
    device.synchronize();
  }

  void initialize(uint64_t seed) {
    for (const Parameter& p : parameters.all()) {
      const Buffer buffer(device, static_cast<size_t>(p.weight.elements()) * sizeof(double));
      const Tensor values(buffer.data(), master_dtype(parameters.precision()), p.local.shape);
      write_initial_values(device, p, seed, 0, values);
      device.ops().cast(values, p.weight);
      device.synchronize();
    }
    parameters.clear_gradients();
  }

  // Overwrites a parameter's weight, rounded to its type.
  void set_weight(const std::string& name, const Values& values) {
    const Tensor& weight = parameters.at(name).weight;
    const auto write = [&](auto zero) {
      std::vector<decltype(zero)> typed;
      for (double v : values) {
        if constexpr (std::is_same_v<decltype(zero), bf16>)
          typed.push_back(bf16(static_cast<float>(v)));
        else
          typed.push_back(static_cast<decltype(zero)>(v));
      }
      device.copy_in(weight, typed.data());
      device.synchronize();
    };
    if (weight.dtype == DType::f64) write(0.0);
    if (weight.dtype == DType::f32) write(0.0f);
    if (weight.dtype == DType::bf16) write(bf16{});
  }

  // Adds N(0, std) noise to everything that is not padding: biases and norms leave their special values.
  void perturb(double std) {
    for (const Parameter& p : parameters.all()) {
      Values w = to_host(device, p.weight);
      const int64_t row = p.spec.shape.rank() > 1 ? p.spec.shape[1] : 1;
      const int64_t real = p.spec.init_rows >= 0 ? p.spec.init_rows * row : p.spec.shape.elements();
      for (int64_t i = 0; i < real; ++i)
        w[i] += std * normal4(random_block(PhiloxKey{99, static_cast<uint32_t>(p.spec.id)}, i))[0];
      set_weight(p.spec.name, w);
    }
  }

  // Deterministic tokens; every `masked`-th target is -1 (0: none).
  void make_batch(int64_t rows, int64_t time, int masked) {
    tokens.clear();
    targets.clear();
    for (int64_t i = 0; i < rows * time; ++i) {
      tokens.push_back(static_cast<int32_t>(mix64(i) % static_cast<uint64_t>(model.vocab)));
      targets.push_back(
          masked && i % masked == 0 ? -1 : static_cast<int32_t>(mix64(i + 1000) % uint64_t(model.vocab)));
    }
  }
  int64_t valid() const {
    int64_t n = 0;
    for (int32_t t : targets)
      n += t >= 0;
    return n;
  }

  // Rows [first, first + rows) of the batch through forward (and backward);
  // returns the sum of the token losses.
  double run(int64_t first, int64_t rows, int64_t time, bool train) {
    const Microbatch batch{first, rows, time, train};
    const auto part = [&](const std::vector<int32_t>& all) {
      return std::span(all).subspan(first * time, rows * time);
    };
    stage.set_input(0, batch, part(tokens), part(targets));
    stage.clear_loss();
    stage.forward(0, batch);
    if (train) stage.backward(0, batch);
    return to_host(device, stage.loss_total())[0];
  }

  std::map<std::string, Values> gradients() {
    std::map<std::string, Values> all;
    for (const Parameter& p : parameters.all())
      all[p.spec.name] = to_host(device, p.grad);
    return all;
  }

  Device& device;
  ModelConfig model;
  SelfCommunicator self;
  ParameterSet parameters;
  Stage stage;
  Buffer params_buffer;
  StepParams host_params;
  std::vector<int32_t> tokens, targets;
};

inline ModelConfig small_model(bool tied = true, bool bias = true, double dropout = 0.0) {
  ModelConfig m;
  m.layers = 2;
  m.heads = 2;
  m.channels = 16;
  m.context = 6;
  m.vocab = 11;
  m.tied = tied;
  m.bias = bias;
  m.dropout = dropout;
  return m;
}

}  // namespace hearth::testing
