#include "support/op_bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/philox.h"

namespace hearth::testing {

namespace {

// NaN in every float type: outputs before they are written, and what surrounds inputs.
constexpr std::byte poison{0xff};
// A number near 1 (in f64, near 0): what surrounds outputs.  Adding to it shows, while NaN would stay NaN.
constexpr std::byte canary{0x3f};
constexpr int64_t guard = 256;

Tensor whole(const Buffer& buffer) {
  return Tensor(buffer.data(), DType::u8, {static_cast<int64_t>(buffer.bytes())});
}

std::vector<std::byte> read(Device& device, const Buffer& buffer) {
  std::vector<std::byte> image(buffer.bytes());
  device.copy_out(image.data(), whole(buffer));
  return image;
}

double load(const std::byte* at, DType type) {
  switch (type) {
    case DType::f64:
      return *reinterpret_cast<const double*>(at);
    case DType::f32:
      return *reinterpret_cast<const float*>(at);
    case DType::bf16:
      return static_cast<float>(*reinterpret_cast<const bf16*>(at));
    case DType::i32:
      return *reinterpret_cast<const int32_t*>(at);
    default:
      return std::nan("");
  }
}

void store(std::byte* at, DType type, double value) {
  switch (type) {
    case DType::f64:
      *reinterpret_cast<double*>(at) = value;
      break;
    case DType::f32:
      *reinterpret_cast<float*>(at) = static_cast<float>(value);
      break;
    case DType::bf16:
      *reinterpret_cast<bf16*>(at) = bf16(static_cast<float>(value));
      break;
    case DType::i32:
      *reinterpret_cast<int32_t*>(at) = static_cast<int32_t>(value);
      break;
    default:
      break;
  }
}

double rounded(double value, DType type) {
  std::byte memory[8];
  store(memory, type, value);
  return load(memory, type);
}

// Calls visit(offset in elements, index of the first element, length) for each run of neighbours of a view.
template <class Visit>
void for_each_run(const Tensor& t, const Visit& visit) {
  const int last = t.shape.rank() - 1;
  const int64_t length = t.shape[last];
  const int64_t runs = length ? t.elements() / length : 0;
  for (int64_t run = 0; run < runs; ++run) {
    int64_t offset = 0, rest = run;
    for (int i = last - 1; i >= 0; --i) {
      offset += rest % t.shape[i] * t.stride[i];
      rest /= t.shape[i];
    }
    visit(offset, run * length, length);
  }
}

// ||a - b|| / ||b||, or ||a|| when b is zero.
double error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) {  // also equal infinities
      size += std::isinf(b[i]) ? 0 : b[i] * b[i];
      continue;
    }
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(size > 0 ? difference / size : difference);
}

}  // namespace

// ---- operands and values

template <class Map>
static Operand mapped(const Operand& operand, size_t sides, const Map& map) {
  std::vector<Tensor> views;
  for (size_t s = 0; s < sides; ++s)
    views.push_back(map(operand[s]));
  return Operand(std::move(views));
}

Operand Operand::rows(int64_t begin, int64_t count) const {
  return slice(0, begin, count);
}
Operand Operand::slice(int dim, int64_t begin, int64_t count) const {
  return mapped(*this, sides_.size(), [&](const Tensor& t) { return t.slice(dim, begin, count); });
}
Operand Operand::heads(int64_t batch, int64_t column, int64_t head_count, int64_t head_size) const {
  return mapped(*this, sides_.size(),
                [&](const Tensor& t) { return t.heads(batch, column, head_count, head_size); });
}
Operand Operand::reshaped(const Shape& shape) const {
  return mapped(*this, sides_.size(), [&](const Tensor& t) { return t.reshaped(shape); });
}

// Nearly normal: the sum of three uniform numbers, from one mix of (seed, index).
Values normal(double scale, double mean) {
  return [=](int64_t index, uint64_t seed) {
    const uint64_t bits = mix64(mix64(seed) + static_cast<uint64_t>(index));
    const double sum =
        static_cast<double>((bits & 0x1fffff) + (bits >> 21 & 0x1fffff) + (bits >> 42 & 0x1fffff));
    return mean + scale * 2 * (sum / 0x1fffff - 1.5);
  };
}
Values constant(double value) {
  return [=](int64_t, uint64_t) { return value; };
}
Values integers(int64_t begin, int64_t end) {
  return [=](int64_t index, uint64_t seed) {
    const uint64_t bits = mix64(mix64(seed) + static_cast<uint64_t>(index)) >> 16;
    return static_cast<double>(begin + static_cast<int64_t>(bits % static_cast<uint64_t>(end - begin)));
  };
}
Values listed(std::vector<double> values) {
  return [values = std::move(values)](int64_t index, uint64_t) { return values[static_cast<size_t>(index)]; };
}

// ---- the bench

Bench::Bench(const Setup& setup, std::vector<std::unique_ptr<Device>>& devices, std::string description)
    : setup_(setup), description_(std::move(description)) {
  size_t used = 0;
  for (; used < setup.devices.size(); ++used)
    sides_.push_back({devices[used].get(), setup.compute});
  if (setup.bitwise) return;
  exact_ = sides_.size();
  sides_.push_back({devices[used].get(), DType::f64});
  if (setup.is_reference) return;
  same_ = sides_.size();
  sides_.push_back({devices[used].get(), setup.compute});
}

DType Bench::dtype(Kind kind, size_t side) const {
  if (kind == Kind::i32) return DType::i32;
  if (kind == Kind::f64) return DType::f64;
  const DType compute = sides_[side].compute;
  return kind == Kind::compute || compute == DType::f64 ? compute : DType::f32;
}

Operand Bench::add(const std::string& name, Kind kind, Role role, const Shape& shape, const Values& values,
                   int64_t stride, Bounds bounds) {
  Storage storage{name, kind, role, bounds, {}, {}, {}};
  const uint64_t seed = storages_.size() + 1;
  std::vector<double> numbers;
  for (int64_t i = 0; role != Role::output && i < shape.elements(); ++i)
    numbers.push_back(rounded(values(i, seed), dtype(kind, 0)));

  std::vector<Tensor> tensors;
  for (size_t s = 0; s < sides_.size(); ++s) {
    Tensor layout(nullptr, dtype(kind, s), shape);
    if (stride) layout.stride[0] = stride;
    const int64_t width = size_of(layout.dtype);
    const int64_t extent = shape[0] ? shape[0] * layout.stride[0] : 0;
    const size_t bytes = static_cast<size_t>(2 * guard + extent * width);
    const std::byte surroundings = role == Role::input ? poison : canary;
    Image image{Buffer(*sides_[s].device, bytes), std::vector<std::byte>(bytes, surroundings)};
    std::vector<uint8_t>& covered = storage.covered[sides_[s].compute == DType::f64];
    covered.assign(bytes, 0);
    for_each_run(layout, [&](int64_t offset, int64_t index, int64_t length) {
      const auto run_bytes = static_cast<size_t>(length * width);
      std::memset(covered.data() + guard + offset * width, 1, run_bytes);
      std::memset(image.before.data() + guard + offset * width, static_cast<int>(poison), run_bytes);
      for (int64_t i = 0; i < length && !numbers.empty(); ++i)
        store(image.before.data() + guard + (offset + i) * width, layout.dtype,
              numbers[static_cast<size_t>(index + i)]);
    });
    sides_[s].device->copy_in(whole(image.buffer), image.before.data());
    sides_[s].device->synchronize();
    layout.data = static_cast<std::byte*>(image.buffer.data()) + guard;
    tensors.push_back(layout);
    storage.images.push_back(std::move(image));
  }
  storage.operand = Operand(std::move(tensors));
  storages_.push_back(std::move(storage));
  return storages_.back().operand;
}

Operand Bench::input(const std::string& name, Kind kind, const Shape& shape, const Values& values,
                     int64_t stride) {
  return add(name, kind, Role::input, shape, values, stride, {});
}
Operand Bench::output(const std::string& name, Kind kind, const Shape& shape, Bounds bounds, int64_t stride) {
  return add(name, kind, Role::output, shape, {}, stride, bounds);
}
Operand Bench::inout(const std::string& name, Kind kind, const Shape& shape, const Values& values,
                     Bounds bounds, int64_t stride) {
  return add(name, kind, Role::inout, shape, values, stride, bounds);
}

void Bench::step(const StepParams& params) {
  for (const Side& side : sides_) {
    Buffer buffer(*side.device, sizeof(params));
    side.device->copy_in(whole(buffer), &params);
    side.device->synchronize();
    step_buffers_.push_back(std::move(buffer));
  }
}

void Bench::run(const Body& body) {
  for (size_t s = 0; s < sides_.size(); ++s) {
    Ops& ops = sides_[s].device->ops();
    ops.set_step_params(
        step_buffers_.empty()
            ? nullptr
            : static_cast<const StepParams*>(step_buffers_[step_buffers_.size() - sides_.size() + s].data()));
    body(ops, s);
    sides_[s].device->synchronize();
  }
  for (Storage& storage : storages_) {
    for (size_t s = 0; s < sides_.size(); ++s)
      expect_manners(storage, s);
    if (storage.role == Role::input) continue;
    if (setup_.bitwise)
      expect_equal_bits(storage);
    else
      expect_close(storage.name, storage.operand, storage.kind, storage.bounds);
  }
}

// Nothing changed but elements of outputs.
void Bench::expect_manners(Storage& storage, size_t side) {
  Image& image = storage.images[side];
  std::vector<std::byte> after = read(*sides_[side].device, image.buffer);
  const std::vector<uint8_t>& covered = storage.covered[sides_[side].compute == DType::f64];
  for (size_t i = 0; i < after.size(); ++i) {
    if (after[i] == image.before[i]) continue;
    if (covered[i] && storage.role != Role::input) continue;
    ADD_FAILURE() << description_ << ": side " << side << " wrote "
                  << (covered[i] ? "into the input " : "outside of ") << storage.name << ", at byte "
                  << static_cast<int64_t>(i) - guard;
    break;
  }
  image.before = std::move(after);
}

void Bench::expect_equal_bits(const Storage& storage) {
  for (size_t s = 1; s < sides_.size(); ++s)
    EXPECT_TRUE(storage.images[s].before == storage.images[0].before)
        << description_ << ": " << storage.name << " differs between side 0 and side " << s;
}

std::vector<double> Bench::values(const Operand& view, size_t side) const {
  const Tensor t = view[side];
  const int64_t width = size_of(t.dtype);
  for (const Storage& storage : storages_) {
    const Buffer& buffer = storage.images[side].buffer;
    const int64_t begin = static_cast<std::byte*>(t.data) - static_cast<std::byte*>(buffer.data());
    if (begin < 0 || begin >= static_cast<int64_t>(buffer.bytes())) continue;
    std::vector<double> result;
    for_each_run(t, [&](int64_t offset, int64_t, int64_t length) {
      for (int64_t i = 0; i < length; ++i)
        result.push_back(load(storage.images[side].before.data() + begin + (offset + i) * width, t.dtype));
    });
    return result;
  }
  ADD_FAILURE() << "not an operand of this bench";
  return {};
}

double Bench::bound(Kind kind, const Bounds& bounds, bool exact) const {
  if (!exact && bounds.same_bits) return 0;
  const bool bf16_result = is_bf16() && (kind == Kind::compute || bounds.rounded_before);
  if (bf16_result) return exact ? bounds.bf16_exact : bounds.bf16_same;
  return bounds.f32;
}

void Bench::expect_close(const std::string& name, const Operand& view, Kind kind, Bounds bounds) {
  if (setup_.bitwise) return;
  const std::vector<double> tested = values(view);
  EXPECT_LE(error(tested, exact_values(view)), bound(kind, bounds, true))
      << description_ << ": " << name << " against the exact values";
  if (!same_) return;
  EXPECT_LE(error(tested, values(view, same_)), bound(kind, bounds, false))
      << description_ << ": " << name << " against the reference in the same types";
}

}  // namespace hearth::testing
