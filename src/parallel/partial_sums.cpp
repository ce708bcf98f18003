#include "parallel/partial_sums.h"

#include "parallel/split.h"

namespace hearth {

namespace {

// Where each parameter starts in the packed tensor, and behind the last one its size.  Elements.
std::vector<int64_t> offsets_of(const std::vector<Parameter>& parameters, int parts) {
  std::vector<int64_t> offsets{0};
  for (const Parameter& p : parameters) {
    const int64_t rows = p.local.shape[0];
    const int64_t most = chunk_rows(rows, parts) * (p.local.shape.elements() / rows);
    offsets.push_back(offsets.back() + (p.spec.partial_under_sequence ? most : 0));
  }
  return offsets;
}

}  // namespace

int64_t PartialSums::bytes(const std::vector<Parameter>& parameters, Precision precision, int parts) {
  return offsets_of(parameters, parts).back() * size_of(master_dtype(precision));
}

PartialSums::PartialSums(Device& device, const ParameterSet& parameters, const Optimizer& optimizer,
                         int parts) {
  const std::vector<int64_t> offsets = offsets_of(parameters.all(), parts);
  buffer_ = Buffer(device, static_cast<size_t>(bytes(parameters.all(), parameters.precision(), parts)));
  packed_ = Tensor(buffer_.data(), master_dtype(parameters.precision()), {offsets.back()});
  if (offsets.back() == 0) return;
  // Ranks with fewer rows leave gaps, which must be numbers.
  device.ops().fill_zero(packed_);
  for (const OptimizerPiece& piece : optimizer.pieces()) {
    if (!parameters.all()[piece.parameter].spec.partial_under_sequence) continue;
    const Tensor grad = piece.grad.reshaped({piece.grad.elements()});
    places_.emplace_back(grad, packed_.rows(offsets[piece.parameter], grad.elements()));
  }
}

void PartialSums::sum(Device& device, Communicator& tensor) const {
  if (places_.empty()) return;
  for (const auto& [grad, place] : places_)
    device.ops().copy(grad, place);
  tensor.all_reduce(packed_, Reduce::sum).wait();
  for (const auto& [grad, place] : places_)
    device.ops().copy(place, grad);
}

}  // namespace hearth
