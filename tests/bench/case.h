// A benchmark case: one operation at one shape, described once for every device, every check and every table.
//
// A case declares its operands and calls one operation of device/ops.h on them.  From the declaration follow
// the bytes that the operation must move, the values it starts from, and how to cut out the part that the
// reference recomputes.  No case knows a device.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/ops.h"

namespace hearth::bench {

// scratch: written, but nobody's result.
enum class Role : uint8_t { input, output, inout, scratch };

// What a storage holds at first.  Element i of all kinds is a function of i and of the storage's index.
struct Values {
  enum class Kind : uint8_t {
    normal,     // N(mean, scale^2)
    positive,   // mean + scale |N(0, 1)|
    scattered,  // i32: every value below `limit`, in an order without locality
    counting,   // i32: i % limit, as positions are
  } kind = Kind::normal;
  double scale = 1;
  double mean = 0;
  int64_t limit = 1;
};
inline Values normal(double scale = 1, double mean = 0) {
  return {Values::Kind::normal, scale, mean, 1};
}
inline Values positive(double scale = 1, double mean = 0) {
  return {Values::Kind::positive, scale, mean, 1};
}
inline Values scattered(int64_t limit) {
  return {Values::Kind::scattered, 1, 0, limit};
}
inline Values counting(int64_t limit) {
  return {Values::Kind::counting, 1, 0, limit};
}

// Contiguous memory.
struct Storage {
  DType dtype;
  Shape shape;
  Values values;
  bool poisoned;  // NaN bits instead of values: nothing may read it
};

// The part of one dimension that the reference recomputes: its first or its last `count` elements.
struct Cut {
  int dim;
  int64_t count;
};

// What an operation gets: a storage, or a view of it.
struct Operand {
  std::string name;
  Role role;
  size_t storage;
  std::function<Tensor(const Tensor&)> view;  // of the storage; absent = all of it
  std::vector<Cut> cuts;
  double share = 1;  // of the operand that is touched: rows that a gather leaves out are not
};

// The operands of a case on some device, by index; -1 is absent.
class Tensors {
 public:
  void add(const Tensor& t) { tensors_.push_back(t); }
  Tensor operator[](int index) const { return index < 0 ? Tensor{} : tensors_[static_cast<size_t>(index)]; }

 private:
  std::vector<Tensor> tensors_;
};

using Body = std::function<void(Ops&, const Tensors&)>;

struct Case {
  std::string name;   // "qkv forward"
  std::string shape;  // "65536 x 768 -> 2304"
  double flops = 0;   // of matrix products; 0 for what only moves memory
  double times = 0;   // calls in one training step of the model; 0 = not part of it
  // Predicted share of the ceiling (the larger of products at full speed and bytes at full bandwidth) on an
  // H200, and whether the operation depends on device.gemm.
  double expected = 0.85;
  bool product = false;

  std::vector<Storage> storages = {};
  std::vector<Operand> operands = {};
  Body prepare = {};  // once, before `run`: makes operands that must fit together (lse, statistics)
  Body run = {};      // any number of times

  std::string id() const { return name + " [" + shape + "]"; }
  // Each operand once in each direction, as if caches were perfect.
  double bytes() const;
  // At given ceilings, in FLOP/s and bytes/s.
  double ideal_seconds(double flop_rate, double byte_rate) const;

  // Declarations; each returns the index of the operand.
  int input(const std::string& name, DType type, const Shape& shape, const Values& values = normal(),
            const std::vector<Cut>& cuts = {});
  int output(const std::string& name, DType type, const Shape& shape, const std::vector<Cut>& cuts = {});
  int inout(const std::string& name, DType type, const Shape& shape, const Values& values = normal(),
            const std::vector<Cut>& cuts = {});
  int scratch(const std::string& name, DType type, const Shape& shape, const std::vector<Cut>& cuts = {});
  // `count` heads from column `column` of the fused activation that operand `of` is; replaces nothing.
  int heads(const std::string& name, int of, int64_t batch, int64_t column, int64_t count, int64_t head_size);
  // The operand is only there to be viewed by others.
  void only_viewed(int operand);

 private:
  int add(const std::string& name, Role role, DType type, const Shape& shape, const Values& values,
          const std::vector<Cut>& cuts);
};

// The step's scalars in the memory of a device; set for its operations as long as this lives.
class StepScalars {
 public:
  explicit StepScalars(Device& device);
  ~StepScalars();
  StepScalars(const StepScalars&) = delete;
  StepScalars& operator=(const StepScalars&) = delete;

 private:
  Device& device_;
  Buffer buffer_;
};

// The operands of a case in the memory of a device.
class Instance {
 public:
  Instance(Device& device, const Case& c);
  const Tensors& tensors() const { return tensors_; }

 private:
  Buffer buffer_;
  Tensors tensors_;
};

// Element `index` of a case's storage, before it is rounded to the storage's type.
double initial_value(const Case& c, size_t storage, int64_t index);
// One element as a double, and back (rounded to nearest).
double load(const void* data, DType type, int64_t index);
void store(void* data, DType type, int64_t index, double value);

}  // namespace hearth::bench
