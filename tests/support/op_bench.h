// The bench on which one operation runs on several devices at once, with one body for all of them.
//
// A case declares operands, which exist on every side with equal values, runs the operation on every side,
// and the bench compares: each output with the reference in f64 (exact) and with the reference in the tested
// types (same rounding points), or, when the sides are one implementation with several thread counts, bit for
// bit. It also holds every case to manners: outputs start as NaN, what surrounds a tensor (and fills the gaps
// of a strided one) is NaN and must stay so, and inputs must not change.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/ops.h"

namespace hearth::testing {

using MakeDevice = std::function<std::unique_ptr<Device>()>;

// What one parametrised run of all cases compares.
struct Setup {
  std::string name;
  DType compute = DType::f32;  // of the tested device
  std::vector<MakeDevice> devices;
  // The devices must agree bit for bit; otherwise the only one is held to the reference.
  bool bitwise = false;
  bool is_reference = false;
  // What the implementation asks for: channels, features and columns of the vocabulary are multiples of this.
  int64_t granule = 1;
  // The softmax of attention is rounded to bf16 before it meets v, as tensor cores want it.
  bool rounds_probabilities = false;
  bool casts_to_f64 = true;
};
// Defined once per test program: the cpu's implementations in support/op_setups.cpp,
// the kernels' in kernels/op_setups.cpp.
std::vector<Setup> setups();
inline std::ostream& operator<<(std::ostream& out, const Setup& setup) {
  return out << setup.name;
}

// The types of an operand: device/ops.h calls the first two c and m.
enum class Kind { compute, master, f64, i32 };

// One operand on every side.  The default one is absent.
class Operand {
 public:
  Operand() = default;
  explicit Operand(std::vector<Tensor> sides) : sides_(std::move(sides)) {}

  Tensor operator[](size_t side) const { return sides_.empty() ? Tensor{} : sides_[side]; }
  explicit operator bool() const { return !sides_.empty(); }
  Operand rows(int64_t begin, int64_t count) const;
  Operand slice(int dim, int64_t begin, int64_t count) const;
  Operand heads(int64_t batch, int64_t column, int64_t head_count, int64_t head_size) const;
  Operand reshaped(const Shape& shape) const;

 private:
  std::vector<Tensor> sides_;
};

// Element `index` of an operand; `seed` differs from operand to operand.
using Values = std::function<double(int64_t index, uint64_t seed)>;
Values normal(double scale = 1, double mean = 0);
Values constant(double value);
Values integers(int64_t begin, int64_t end);  // uniform in [begin, end)
Values listed(std::vector<double> values);

// The largest ||a - b|| / ||b|| allowed.
struct Bounds {
  double f32 = 2e-6;            // of what is computed and stored in f32
  double bf16_exact = 4e-3;     // of a bf16 output against the reference in f64: half an ulp
  double bf16_same = 3e-4;      // and against the reference in bf16: only elements near a tie may differ
  bool rounded_before = false;  // computed from values that were themselves rounded: see after_rounding()
  bool same_bits = false;       // see same_bits()
};
// Of values multiplied by 1 / (1 - p) before they are rounded.  For p = 0.1 every ninth sum of two bf16
// numbers lands on or beside a tie, and which side depends on the last bit of the factor.
inline Bounds after_dropout(double probability) {
  const bool awkward = probability != 0 && probability != 0.5;
  return {.bf16_same = awkward ? 1e-3 : 3e-4};
}
// Of values that depend on something rounded on the way, a statistic of a bf16 sum for instance; after
// dropout the rounding itself may differ.
inline Bounds after_rounding(double bf16_exact = 8e-3, double probability = 0) {
  Bounds bounds = after_dropout(probability);
  bounds.bf16_same *= bf16_exact / 8e-3;
  bounds.bf16_exact = bf16_exact;
  bounds.rounded_before = true;
  return bounds;
}
// Defined operation by operation: every implementation gets the bits of the reference in the same types.
inline Bounds same_bits() {
  return {2e-6, 4e-3, 0, false, true};
}
// For cases that are hard for f32.
inline Bounds ill_conditioned(double f32, double bf16_same = 1e-3) {
  return {f32, 8e-3, bf16_same, true, false};
}

class Bench {
 public:
  using Body = std::function<void(Ops& ops, size_t side)>;

  Bench(const Setup& setup, std::vector<std::unique_ptr<Device>>& devices, std::string description);

  bool bitwise() const { return setup_.bitwise; }
  DType compute() const { return setup_.compute; }
  bool is_bf16() const { return setup_.compute == DType::bf16; }

  // `stride` is the distance between rows in elements, 0 for a contiguous tensor.
  Operand input(const std::string& name, Kind kind, const Shape& shape, const Values& values,
                int64_t stride = 0);
  Operand output(const std::string& name, Kind kind, const Shape& shape, Bounds bounds = {},
                 int64_t stride = 0);
  // Read and written.
  Operand inout(const std::string& name, Kind kind, const Shape& shape, const Values& values,
                Bounds bounds = {}, int64_t stride = 0);
  void step(const StepParams& params);

  // Runs `body` on every side and compares.
  void run(const Body& body);

  // The elements of a view on one side (side 0 is the tested one), in order.
  std::vector<double> values(const Operand& view, size_t side = 0) const;
  std::vector<double> exact_values(const Operand& view) const { return values(view, exact_); }
  // Additional comparison of a part of an output.
  void expect_close(const std::string& name, const Operand& view, Kind kind, Bounds bounds = {});

 private:
  struct Side {
    Device* device;
    DType compute;
  };
  enum class Role { input, output, inout };
  struct Image {
    Buffer buffer;
    std::vector<std::byte> before;
  };
  struct Storage {
    std::string name;
    Kind kind;
    Role role;
    Bounds bounds;
    Operand operand;
    std::vector<uint8_t> covered[2];  // which bytes are elements, for wide (f64) and tested types
    std::vector<Image> images;        // one per side
  };

  Operand add(const std::string& name, Kind kind, Role role, const Shape& shape, const Values& values,
              int64_t stride, Bounds bounds);
  DType dtype(Kind kind, size_t side) const;
  void expect_manners(Storage& storage, size_t side);
  void expect_equal_bits(const Storage& storage);
  double bound(Kind kind, const Bounds& bounds, bool exact) const;

  const Setup& setup_;
  std::string description_;
  std::vector<Side> sides_;
  size_t exact_ = 0;  // the side with the reference in f64
  size_t same_ = 0;   // the side with the reference in the tested types, 0 for none
  std::vector<Storage> storages_;
  std::vector<Buffer> step_buffers_;
};

}  // namespace hearth::testing
