#include "parallel/optimizer.h"

namespace hearth {

namespace {

constexpr uint64_t bucket_bytes = uint64_t{32} << 20;

Tensor flat(const Tensor& t) {
  return t.reshaped({t.elements()});
}

int64_t rows_of(const Parameter& p) {
  return p.local.shape[0];
}

int64_t columns_of(const Parameter& p) {
  return p.local.shape.rank() > 1 ? p.local.shape[1] : 1;
}

// Elements of one rank's block of a parameter, padding included.
int64_t block_elements(const Parameter& p, int64_t ranks) {
  return block_rows(rows_of(p), ranks) * columns_of(p);
}

int64_t chunk_elements(const Bucket& bucket, const std::vector<Parameter>& parameters, int64_t ranks) {
  int64_t elements = 0;
  for (size_t i : bucket.parameters)
    elements += block_elements(parameters[i], ranks);
  return elements;
}

// From the first gradient of a bucket to the end of its last one, as one flat tensor (alignment gaps
// included).
Tensor span_of(const Bucket& bucket, const std::vector<Parameter>& parameters) {
  const Tensor& first = parameters[bucket.parameters.front()].grad;
  const Tensor& last = parameters[bucket.parameters.back()].grad;
  const auto* begin = static_cast<std::byte*>(first.data);
  const auto* end = static_cast<std::byte*>(last.data) + last.bytes();
  return Tensor(first.data, first.dtype, {(end - begin) / size_of(first.dtype)});
}

// What decides the layout.
struct OptimizerShape {
  const std::vector<Parameter>& parameters;
  const std::vector<Bucket>& buckets;
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
  for (const Bucket& bucket : shape.buckets)
    memory.buckets.push_back({span_of(bucket, shape.parameters), {}, {}});
  return memory;
}

// Each bucket becomes D rows of one chunk; a chunk holds this rank's block of every parameter of the bucket.
OptimizerMemory carve_sharded(const OptimizerShape& shape, Carver& state, Carver& communication) {
  const DType master = master_dtype(shape.precision);
  const DType compute = compute_dtype(shape.precision);
  OptimizerMemory memory;
  int64_t largest = 0;
  for (const Bucket& bucket : shape.buckets) {
    const int64_t chunk = chunk_elements(bucket, shape.parameters, shape.ranks);
    largest = std::max(largest, chunk);
    BucketMemory m;
    m.gradients = communication.take(master, {shape.ranks, chunk});
    m.own_gradients = communication.take(master, {chunk});
    m.own_weights = communication.take(compute, {chunk});
    int64_t offset = 0;
    for (size_t i : bucket.parameters) {
      const Parameter& p = shape.parameters[i];
      const Rows own = block_of(rows_of(p), shape.ranks, shape.rank);
      const Shape rows = p.local.shape.with(0, own.count);
      OptimizerPiece piece;
      piece.parameter = i;
      piece.first_row = own.first;
      piece.master = state.take(master, rows);
      piece.moment1 = state.take(master, rows);
      piece.moment2 = state.take(master, rows);
      piece.grad = m.own_gradients.rows(offset, rows.elements()).reshaped(rows);
      piece.weight = m.own_weights.rows(offset, rows.elements()).reshaped(rows);
      offset += block_elements(p, shape.ranks);
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
  buckets_ = gradient_buckets(parameters.all(), bucket_bytes);
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
  const std::vector<Bucket> buckets = gradient_buckets(parameters, bucket_bytes);
  Carver state, communication;
  carve_optimizer({parameters, buckets, precision, zero > 0 && data_size > 1, data_size, 0}, state,
                  communication);
  plan.optimizer += state.used();
  plan.communication += communication.used();
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
// --------------------------------------------------------------------------------------------------

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
    pack_gradients(buckets_[bucket], m.gradients);
    pending_[bucket] = data_.reduce_scatter(flat(m.gradients), m.own_gradients);
  } else {
    pending_[bucket] = data_.all_reduce(m.gradients, Reduce::sum);
  }
}

// Row d of `into` gets block d of every parameter, one behind the other; padding keeps what it had.
void Optimizer::pack_gradients(const Bucket& bucket, const Tensor& into) {
  const int64_t ranks = data_.size();
  for (int64_t d = 0; d < ranks; ++d) {
    int64_t offset = 0;
    const Tensor row = into.rows(d, 1).reshaped({into.dim(1)});
    for (size_t i : bucket.parameters) {
      const Parameter& p = parameters_.all()[i];
      const Rows block = block_of(rows_of(p), ranks, d);
      const Tensor source = flat(p.grad.rows(block.first, block.count));
      if (block.count > 0) device_.ops().copy(source, row.rows(offset, source.elements()));
      offset += block_elements(p, ranks);
    }
  }
}

void Optimizer::gather_weights() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const int64_t chunk = memory_.buckets[b].own_weights.elements();
    const Tensor all = memory_.gathered_weights.rows(0, chunk * data_.size());
    data_.all_gather(memory_.buckets[b].own_weights, all).wait();
    unpack_weights(buckets_[b], all.reshaped({data_.size(), chunk}));
  }
}

void Optimizer::unpack_weights(const Bucket& bucket, const Tensor& from) {
  const int64_t ranks = data_.size();
  for (int64_t d = 0; d < ranks; ++d) {
    int64_t offset = 0;
    const Tensor row = from.rows(d, 1).reshaped({from.dim(1)});
    for (size_t i : bucket.parameters) {
      const Parameter& p = parameters_.all()[i];
      const Rows block = block_of(rows_of(p), ranks, d);
      const Tensor target = flat(p.weight.rows(block.first, block.count));
      if (block.count > 0) device_.ops().copy(row.rows(offset, target.elements()), target);
      offset += block_elements(p, ranks);
    }
  }
}

// ---- norm and update
// --------------------------------------------------------------------------------------------

void Optimizer::gradient_sum_of_squares(const Tensor& total,
                                        const std::function<bool(const ParamSpec&)>& owned) const {
  if (!sharded_ && data_.rank() != 0) return;
  for (const OptimizerPiece& piece : memory_.pieces)
    if (owned(parameters_.all()[piece.parameter].spec)) device_.ops().sum_of_squares(piece.grad, total);
}

void Optimizer::update(const AdamWConfig& config) {
  device_.ops().adamw(segments_, config);
  if (!sharded_) return;
  parameters_.clear_gradients();
  gather_weights();
}

}  // namespace hearth
