#include "bench/check.h"

#include <cmath>

namespace hearth::bench {

namespace {

enum class Part : uint8_t { first, last };

Tensor cut(Tensor t, const std::vector<Cut>& cuts, Part part) {
  for (const Cut& c : cuts) {
    const int64_t count = std::min(c.count, t.dim(c.dim));
    t = t.slice(c.dim, part == Part::first ? 0 : t.dim(c.dim) - count, count);
  }
  return t;
}

// Calls function(offset of the element from t.data, its place in row-major order) for every element.
template <class Function>
void for_each_element(const Tensor& t, const Function& function) {
  int64_t index[Shape::max_rank] = {};
  for (int64_t place = 0; place < t.elements(); ++place) {
    int64_t offset = 0;
    for (int i = 0; i < t.shape.rank(); ++i)
      offset += index[i] * t.stride[i];
    function(offset, place);
    for (int i = t.shape.rank() - 1; i >= 0 && ++index[i] == t.shape[i]; --i)
      index[i] = 0;
  }
}

int64_t elements_between(const void* from, const void* to, DType type) {
  return (static_cast<const std::byte*>(to) - static_cast<const std::byte*>(from)) / size_of(type);
}

// The cut-out operands in memory of the reference, with the values that the device started from.
class Excerpt {
 public:
  Excerpt(Device& reference, const Case& c, Part part) {
    for (const Operand& o : c.operands) {
      const Storage& storage = c.storages[o.storage];
      // Offsets do not depend on where a storage lies: any address serves.
      const Tensor whole(&buffers_, storage.dtype, storage.shape);
      const Tensor piece = cut(o.view ? o.view(whole) : whole, o.cuts, part);
      const int64_t begin = elements_between(whole.data, piece.data, storage.dtype);
      Tensor own(nullptr, storage.dtype, piece.shape);
      buffers_.emplace_back(reference, static_cast<size_t>(own.bytes()));
      own.data = buffers_.back().data();
      for_each_element(piece, [&](int64_t offset, int64_t place) {
        store(own.data, own.dtype, place,
              storage.poisoned ? NAN : initial_value(c, o.storage, begin + offset));
      });
      tensors_.add(own);
    }
  }
  const Tensors& tensors() const { return tensors_; }

 private:
  std::vector<Buffer> buffers_;
  Tensors tensors_;
};

// The elements of a tensor of the device, also of one with gaps.
std::vector<double> download(Device& device, const Tensor& t) {
  int64_t extent = 1;
  for (int i = 0; i < t.shape.rank(); ++i)
    extent += (t.shape[i] - 1) * t.stride[i];
  std::vector<std::byte> bytes(static_cast<size_t>(extent * size_of(t.dtype)));
  device.copy_out(bytes.data(), Tensor(t.data, t.dtype, {extent}));
  std::vector<double> values(static_cast<size_t>(t.elements()));
  for_each_element(t, [&](int64_t offset, int64_t place) {
    values[static_cast<size_t>(place)] = load(bytes.data(), t.dtype, offset);
  });
  return values;
}

// Wide enough for the last bits of another order of summation, and for P that attention rounds to bf16;
// narrow enough for one wrong element.  The typical error is relative to each element by itself, so that the
// small numbers of a softmax count although one large number stands beside them; numbers that ought to be
// zero (the gradient of a first query) must not count.
struct Tolerance {
  double norm;     // ||a - b|| / ||b||
  double typical;  // mean of |a - b| / (|a| + |b| + rms of b / 10^4)
  double worst;    // |a - b| / (rms of b + |b| / 2)
};
Tolerance tolerance(DType type) {
  return type == DType::bf16 ? Tolerance{1e-2, 5e-2, 6e-2} : Tolerance{1e-3, 1e-2, 5e-3};
}

std::string compare(const std::string& name, const std::vector<double>& actual, const Tensor& expected) {
  const size_t n = actual.size();
  const auto expected_at = [&](size_t i) {
    return load(expected.data, expected.dtype, static_cast<int64_t>(i));
  };
  double norm2 = 0;
  for (size_t i = 0; i < n; ++i)
    norm2 += expected_at(i) * expected_at(i);
  const double rms = std::sqrt(norm2 / static_cast<double>(n));
  const Tolerance allowed = tolerance(expected.dtype);

  double difference2 = 0, relative = 0;
  for (size_t i = 0; i < n; ++i) {
    const double a = actual[i], b = expected_at(i), difference = std::abs(a - b);
    if (!(difference <= allowed.worst * (rms + std::abs(b) / 2)))  // true for NaN
      return text(name, "[", i, "] is ", a, ", expected ", b);
    difference2 += difference * difference;
    relative += difference == 0 ? 0 : difference / (std::abs(a) + std::abs(b) + rms * 1e-4);
  }
  if (difference2 > allowed.norm * allowed.norm * norm2)
    return text(name, " is off by ", std::sqrt(difference2 / norm2), " of its norm");
  if (relative > allowed.typical * static_cast<double>(n))
    return text(name, " is typically off by ", 200 * relative / static_cast<double>(n), "%");
  return "";
}

}  // namespace

std::string check(Device& device, const Case& c) {
  const StepScalars scalars(device);
  const Instance tested(device, c);
  if (c.prepare) c.prepare(device.ops(), tested.tensors());
  c.run(device.ops(), tested.tensors());
  device.synchronize();

  const auto reference = make_reference_device();
  const StepScalars reference_scalars(*reference);
  for (const Part part : {Part::first, Part::last}) {
    const Excerpt excerpt(*reference, c, part);
    if (c.prepare) c.prepare(reference->ops(), excerpt.tensors());
    c.run(reference->ops(), excerpt.tensors());
    for (size_t o = 0; o < c.operands.size(); ++o) {
      const Operand& operand = c.operands[o];
      if (operand.role != Role::output && operand.role != Role::inout) continue;
      const Tensor result = cut(tested.tensors()[static_cast<int>(o)], operand.cuts, part);
      const std::string wrong =
          compare(operand.name, download(device, result), excerpt.tensors()[static_cast<int>(o)]);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

}  // namespace hearth::bench
