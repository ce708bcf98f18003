#include "bench/case.h"

#include <algorithm>
#include <cmath>

#include "base/philox.h"

namespace hearth::bench {

// ---- declarations

double Case::bytes() const {
  double total = 0;
  for (const Operand& o : operands) {
    const Storage& s = storages[o.storage];
    Tensor whole(nullptr, s.dtype, s.shape);
    const double once = static_cast<double>((o.view ? o.view(whole) : whole).bytes()) * o.share;
    total += o.role == Role::scratch ? 0 : o.role == Role::inout ? 2 * once : once;
  }
  return total;
}

double Case::ideal_seconds(double flop_rate, double byte_rate) const {
  return std::max(flops / flop_rate, bytes() / byte_rate);
}

int Case::add(const std::string& name, Role role, DType type, const Shape& shape, const Values& values,
              const std::vector<Cut>& cuts) {
  const bool poisoned = role == Role::output || role == Role::scratch;
  storages.push_back({type, shape, values, poisoned});
  operands.push_back({name, role, storages.size() - 1, {}, cuts, 1});
  return static_cast<int>(operands.size()) - 1;
}
int Case::input(const std::string& name, DType type, const Shape& shape, const Values& values,
                const std::vector<Cut>& cuts) {
  return add(name, Role::input, type, shape, values, cuts);
}
int Case::output(const std::string& name, DType type, const Shape& shape, const std::vector<Cut>& cuts) {
  return add(name, Role::output, type, shape, {}, cuts);
}
int Case::inout(const std::string& name, DType type, const Shape& shape, const Values& values,
                const std::vector<Cut>& cuts) {
  return add(name, Role::inout, type, shape, values, cuts);
}
int Case::scratch(const std::string& name, DType type, const Shape& shape, const std::vector<Cut>& cuts) {
  return add(name, Role::scratch, type, shape, {}, cuts);
}

int Case::heads(const std::string& name, int of, int64_t batch, int64_t column, int64_t count,
                int64_t head_size) {
  const Operand& fused = operands[static_cast<size_t>(of)];
  const auto view = [=](const Tensor& t) { return t.heads(batch, column, count, head_size); };
  operands.push_back({name, fused.role, fused.storage, view, {{0, 1}, {2, 1}}, 1});
  return static_cast<int>(operands.size()) - 1;
}

void Case::only_viewed(int operand) {
  // The views have taken its role; its own would count the bytes twice.
  operands[static_cast<size_t>(operand)].role = Role::scratch;
  operands[static_cast<size_t>(operand)].cuts = {{0, 1}};
}

// ---- values

namespace {

// Numbers repeat after this many elements: making them must not take longer than the benchmark.  A prime, so
// that no two rows of a tensor are equal.
constexpr int64_t period = 1'000'003;

const std::vector<double>& normal_numbers() {
  static const std::vector<double> numbers = [] {
    std::vector<double> made;
    const PhiloxKey key = random_key(1, RandomDomain::init, 0);
    for (uint64_t block = 0; static_cast<int64_t>(made.size()) < period; ++block)
      for (const double z : normal4(random_block(key, block)))
        made.push_back(z);
    made.resize(period);
    return made;
  }();
  return numbers;
}

}  // namespace

double initial_value(const Case& c, size_t storage, int64_t index) {
  const Values& v = c.storages[storage].values;
  if (v.kind == Values::Kind::scattered) return static_cast<double>(index * 7919 % v.limit);
  if (v.kind == Values::Kind::counting) return static_cast<double>(index % v.limit);
  const int64_t shift = static_cast<int64_t>(storage) * 100'003;
  const double z = normal_numbers()[static_cast<size_t>((index + shift) % period)];
  return v.mean + v.scale * (v.kind == Values::Kind::positive ? std::abs(z) : z);
}

double load(const void* data, DType type, int64_t index) {
  switch (type) {
    case DType::bf16:
      return static_cast<float>(static_cast<const bf16*>(data)[index]);
    case DType::f32:
      return static_cast<const float*>(data)[index];
    case DType::f64:
      return static_cast<const double*>(data)[index];
    default:
      return static_cast<const int32_t*>(data)[index];
  }
}

void store(void* data, DType type, int64_t index, double value) {
  switch (type) {
    case DType::bf16:
      static_cast<bf16*>(data)[index] = bf16(static_cast<float>(value));
      break;
    case DType::f32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      break;
    case DType::f64:
      static_cast<double*>(data)[index] = value;
      break;
    default:
      static_cast<int32_t*>(data)[index] = static_cast<int32_t>(value);
  }
}

// ---- device memory

StepScalars::StepScalars(Device& device) : device_(device), buffer_(device, sizeof(StepParams)) {
  // A large learning rate: one update must be visible in the master weights.
  const StepParams params{0, 0.1, 0.5, 1e-3, 0.1, 0.05};
  device.copy_in(Tensor(buffer_.data(), DType::u8, {static_cast<int64_t>(sizeof params)}), &params);
  device.synchronize();
  device.ops().set_step_params(static_cast<const StepParams*>(buffer_.data()));
}
StepScalars::~StepScalars() {
  device_.ops().set_step_params(nullptr);
}

namespace {

// Copies a piece of the host over and over until the tensor is full.
void fill(Device& device, const Tensor& flat, const std::vector<std::byte>& piece) {
  const int64_t piece_elements = static_cast<int64_t>(piece.size()) / size_of(flat.dtype);
  for (int64_t begin = 0; begin < flat.elements(); begin += piece_elements)
    device.copy_in(flat.rows(begin, std::min(piece_elements, flat.elements() - begin)), piece.data());
  device.synchronize();  // the piece goes away
}

}  // namespace

Instance::Instance(Device& device, const Case& c) {
  // One piece of memory: devices align what they allocate to pages, and a small case has many sets.
  constexpr int64_t alignment = 256;
  std::vector<Tensor> whole;
  int64_t bytes = 0;
  std::vector<int64_t> begins;
  for (const Storage& storage : c.storages) {
    whole.emplace_back(nullptr, storage.dtype, storage.shape);
    begins.push_back(bytes);
    bytes += (whole.back().bytes() + alignment - 1) / alignment * alignment;
  }
  buffer_ = Buffer(device, static_cast<size_t>(bytes));
  for (size_t s = 0; s < c.storages.size(); ++s) {
    Tensor& t = whole[s];
    t.data = static_cast<std::byte*>(buffer_.data()) + begins[s];
    // Numbers repeat, indices do not.
    const int64_t count = t.dtype == DType::i32 ? t.elements() : std::min(t.elements(), period);
    std::vector<std::byte> piece(static_cast<size_t>(count * size_of(t.dtype)), std::byte{0xff});
    for (int64_t i = 0; !c.storages[s].poisoned && i < count; ++i)
      store(piece.data(), t.dtype, i, initial_value(c, s, i));
    fill(device, t.reshaped({t.elements()}), piece);
  }
  for (const Operand& o : c.operands)
    tensors_.add(o.view ? o.view(whole[o.storage]) : whole[o.storage]);
}

}  // namespace hearth::bench
