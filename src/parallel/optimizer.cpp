#include "parallel/optimizer.h"

#include <algorithm>

namespace hearth {

namespace {

constexpr int64_t bucket_bytes = int64_t{32} << 20;

Tensor flat(const Tensor& t) {
  return t.reshaped({t.elements()});
}

int64_t rows_of(const Parameter& p) {
  return p.local.shape[0];
}

// Buckets in the order in which gradients become complete: the table backwards.  The embeddings get
// contributions until the very end, so they travel alone.
std::vector<GradientBucket> gradient_buckets(const std::vector<Parameter>& parameters, int parts) {
  std::vector<BucketTensor> tensors;
  for (size_t i = parameters.size(); i-- > 0;) {
    const Parameter& p = parameters[i];
    tensors.push_back({rows_of(p), p.local.shape.elements() / rows_of(p), p.spec.layer < 0});
  }
  std::vector<GradientBucket> buckets;
  const int64_t capacity = bucket_bytes / size_of(parameters.front().grad.dtype);
  for (const Bucket& bucket : plan_buckets(tensors, parts, capacity)) {
    GradientBucket b{bucket, INT64_MAX};
    for (Bucket::Entry& entry : b.plan.entries) {
      entry.tensor = parameters.size() - 1 - entry.tensor;
      b.layer = std::min(b.layer, parameters[entry.tensor].spec.layer);
    }
    buckets.push_back(b);
  }
  return buckets;
}

// The gradients of a bucket where they are, as one flat tensor (alignment gaps included):
// the last entry lies lowest.
Tensor span_of(const Bucket& bucket, const std::vector<Parameter>& parameters) {
  const Tensor& first = parameters[bucket.entries.back().tensor].grad;
  const Tensor& last = parameters[bucket.entries.front().tensor].grad;
  const auto* begin = static_cast<std::byte*>(first.data);
  const auto* end = static_cast<std::byte*>(last.data) + last.bytes();
  return Tensor(first.data, first.dtype, {(end - begin) / size_of(first.dtype)});
}

// What decides the layout.
struct OptimizerShape {
  const std::vector<Parameter>& parameters;
  const std::vector<GradientBucket>& buckets;
  Precision precision;
  bool sharded;
  int ranks, rank;
};

OptimizerMemory carve_replicated(const OptimizerShape& shape, Carver& state) {
  const DType master = master_dtype(shape.precision);
  OptimizerMemory memory;
  for (size_t i = 0; i < shape.parameters.size(); ++i) {
    const Parameter& p = shape.parameters[i];
    OptimizerPiece piece;
    piece.parameter = i;
    const bool same = p.weight.dtype == master;
    piece.master = same ? p.weight : state.take(master, p.local.shape);
    piece.weight = same ? Tensor{} : p.weight;
    piece.moment1 = state.take(master, p.local.shape);
    piece.moment2 = state.take(master, p.local.shape);
    piece.grad = p.grad;
    memory.pieces.push_back(piece);
  }
  for (const GradientBucket& bucket : shape.buckets)
    memory.buckets.push_back({span_of(bucket.plan, shape.parameters), {}, {}});
  return memory;
}

// Each bucket becomes D rows of one chunk; a chunk holds this rank's block of every parameter of the bucket.
OptimizerMemory carve_sharded(const OptimizerShape& shape, Carver& state, Carver& communication) {
  const DType master = master_dtype(shape.precision);
  const DType compute = compute_dtype(shape.precision);
  OptimizerMemory memory;
  int64_t largest = 0;
  for (const GradientBucket& bucket : shape.buckets) {
    const int64_t part = bucket.plan.part_elements;
    largest = std::max(largest, part);
    BucketMemory m;
    m.gradients = communication.take(master, {shape.ranks, part});
    m.own_gradients = communication.take(master, {part});
    m.own_weights = communication.take(compute, {part});
    for (const Bucket::Entry& entry : bucket.plan.entries) {
      const Parameter& p = shape.parameters[entry.tensor];
      const Range own = bucket.plan.rows(entry, shape.rank);
      const Shape rows = p.local.shape.with(0, own.count);
      OptimizerPiece piece;
      piece.parameter = entry.tensor;
      piece.first_row = own.begin;
      piece.master = state.take(master, rows);
      piece.moment1 = state.take(master, rows);
      piece.moment2 = state.take(master, rows);
      piece.grad = m.own_gradients.rows(entry.part_offset, rows.elements()).reshaped(rows);
      piece.weight = m.own_weights.rows(entry.part_offset, rows.elements()).reshaped(rows);
      if (own.count > 0) memory.pieces.push_back(piece);
    }
    memory.buckets.push_back(m);
  }
  memory.gathered_weights = communication.take(compute, {shape.ranks * largest});
  return memory;
}

OptimizerMemory carve_optimizer(const OptimizerShape& shape, Carver& state, Carver& communication) {
  return shape.sharded ? carve_sharded(shape, state, communication) : carve_replicated(shape, state);
}

}  // namespace

Optimizer::Optimizer(Device& device, ParameterSet& parameters, int zero, Communicator& data)
    : device_(device), parameters_(parameters), data_(data), sharded_(zero > 0 && data.size() > 1) {
  buckets_ = gradient_buckets(parameters.all(), sharded_ ? data.size() : 1);
  const OptimizerShape shape{parameters.all(), buckets_,    parameters.precision(),
                             sharded_,         data.size(), data.rank()};
  Carver state, communication;
  carve_optimizer(shape, state, communication);
  state_ = Buffer(device, state.used());
  communication_ = Buffer(device, communication.used());
  state = Carver(state_.data(), state_.bytes());
  communication = Carver(communication_.data(), communication_.bytes());
  memory_ = carve_optimizer(shape, state, communication);
  pending_.resize(buckets_.size());
  if (sharded_) clear_padding();
  for (const OptimizerPiece& piece : memory_.pieces) {
    const Tensor weight = piece.weight ? flat(piece.weight) : Tensor{};
    segments_.push_back({flat(piece.master), flat(piece.moment1), flat(piece.moment2), flat(piece.grad),
                         weight, parameters.all()[piece.parameter].spec.decay});
  }
}

// Short blocks leave padding in the buckets: it is summed and gathered with the rest, so it must be numbers.
void Optimizer::clear_padding() {
  for (const BucketMemory& m : memory_.buckets) {
    device_.ops().fill_zero(m.gradients);
    device_.ops().fill_zero(m.own_weights);
  }
}

void Optimizer::plan(const std::vector<Parameter>& parameters, Precision precision, int zero, int data_size,
                     MemoryPlan& plan) {
  const bool sharded = zero > 0 && data_size > 1;
  const std::vector<GradientBucket> buckets = gradient_buckets(parameters, sharded ? data_size : 1);
  Carver state, communication;
  carve_optimizer({parameters, buckets, precision, sharded, data_size, 0}, state, communication);
  plan.optimizer += state.used();
  plan.communication += communication.used();
}

Optimizer::Traffic Optimizer::traffic(const std::vector<Parameter>& parameters, Precision precision, int zero,
                                      int data_size) {
  Traffic traffic;
  if (data_size == 1) return traffic;
  for (const GradientBucket& bucket : gradient_buckets(parameters, zero > 0 ? data_size : 1)) {
    traffic.summed += bucket.plan.elements() * size_of(master_dtype(precision));
    if (zero > 0) traffic.gathered += bucket.plan.elements() * size_of(compute_dtype(precision));
  }
  return traffic;
}

void Optimizer::initialize(uint64_t seed) {
  for (const OptimizerPiece& piece : memory_.pieces) {
    write_initial_values(device_, parameters_.all()[piece.parameter], seed, piece.first_row, piece.master);
    device_.ops().fill_zero(piece.moment1);
    device_.ops().fill_zero(piece.moment2);
  }
  parameters_.clear_gradients();
  publish_weights();
}

void Optimizer::publish_weights() {
  for (const OptimizerPiece& piece : memory_.pieces)
    if (piece.weight) device_.ops().cast(piece.master, piece.weight);
  if (sharded_) gather_weights();
}

// ---- reduction

void Optimizer::layer_done(int64_t layer) {
  if (data_.size() == 1) return;
  for (size_t b = 0; b < buckets_.size(); ++b)
    if (buckets_[b].layer >= layer && buckets_[b].layer >= 0) start(b);
}

void Optimizer::finish_reduction() {
  if (data_.size() == 1) return;
  for (size_t b = 0; b < buckets_.size(); ++b)
    start(b);
  for (std::optional<Request>& pending : pending_) {
    pending->wait();
    pending.reset();
  }
}

void Optimizer::start(size_t bucket) {
  const BucketMemory& m = memory_.buckets[bucket];
  if (pending_[bucket]) return;
  if (sharded_) {
    pack_gradients(buckets_[bucket].plan, m.gradients);
    pending_[bucket] = data_.reduce_scatter(flat(m.gradients), m.own_gradients);
  } else {
    pending_[bucket] = data_.all_reduce(m.gradients, Reduce::sum);
  }
}

// Part d of `into` gets rank d's rows of every parameter; padding keeps what it had.
void Optimizer::pack_gradients(const Bucket& bucket, const Tensor& into) {
  for (int d = 0; d < bucket.parts; ++d)
    for (const Bucket::Entry& entry : bucket.entries) {
      const Range rows = bucket.rows(entry, d);
      if (rows.count == 0) continue;
      const Tensor source = flat(parameters_.all()[entry.tensor].grad.rows(rows.begin, rows.count));
      device_.ops().copy(source, flat(into).rows(bucket.offset(entry, d), source.elements()));
    }
}

void Optimizer::gather_weights() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const int64_t chunk = memory_.buckets[b].own_weights.elements();
    const Tensor all = memory_.gathered_weights.rows(0, chunk * data_.size());
    data_.all_gather(memory_.buckets[b].own_weights, all).wait();
    unpack_weights(buckets_[b].plan, all);
  }
}

void Optimizer::unpack_weights(const Bucket& bucket, const Tensor& from) {
  for (int d = 0; d < bucket.parts; ++d)
    for (const Bucket::Entry& entry : bucket.entries) {
      const Range rows = bucket.rows(entry, d);
      if (rows.count == 0) continue;
      const Tensor target = flat(parameters_.all()[entry.tensor].weight.rows(rows.begin, rows.count));
      device_.ops().copy(from.rows(bucket.offset(entry, d), target.elements()), target);
    }
}

// ---- norm and update

void Optimizer::gradient_sum_of_squares(const Tensor& total,
                                        const std::function<bool(const ParamSpec&)>& owned) const {
  if (!sharded_ && data_.rank() != 0) return;
  for (const OptimizerPiece& piece : memory_.pieces)
    if (owned(parameters_.all()[piece.parameter].spec)) device_.ops().sum_of_squares(piece.grad, total);
}

void Optimizer::update(const AdamWConfig& config) {
  const ProfileRange range(device_, "optimizer");
  device_.ops().adamw(segments_, config);
  if (!sharded_) return;
  parameters_.clear_gradients();
  gather_weights();
}

}  // namespace hearth
