#include "train/gradient_dump.h"

#include <cstring>

#include "train/checkpoint.h"

namespace hearth {

namespace {

int64_t columns_of(const Shape& shape) {
  return shape.rank() > 1 ? shape[1] : 1;
}

// Copies a rectangle, row by row, into its place in the whole tensor.
void place(const GradientPiece& piece, const ParamSpec& spec, Device& device, std::vector<std::byte>& whole) {
  std::vector<std::byte> local(static_cast<size_t>(piece.local.bytes()));
  device.copy_out(local.data(), piece.local);
  const auto element = static_cast<int64_t>(size_of(piece.local.dtype));
  const int64_t columns = columns_of(piece.local.shape);
  const int64_t first_column = piece.start.size() > 1 ? piece.start[1] : 0;
  for (int64_t row = 0; row < piece.local.dim(0); ++row) {
    const int64_t at = (piece.start[0] + row) * columns_of(spec.shape) + first_column;
    std::memcpy(whole.data() + at * element, local.data() + row * columns * element,
                static_cast<size_t>(columns * element));
  }
}

}  // namespace

void dump_gradients(const fs::path& file, const std::vector<ParamSpec>& table, Precision precision,
                    const std::vector<GradientPiece>& pieces, Device& device, const ProcessGroups& groups) {
  const bool leader = groups.grid.rank() == 0;
  const DType type = master_dtype(precision);
  std::vector<std::vector<std::byte>> wholes;
  for (const ParamSpec& spec : table) {
    std::vector<std::byte> whole(static_cast<size_t>(spec.shape.elements() * size_of(type)));
    for (const GradientPiece& piece : pieces)
      if (piece.name == spec.name) place(piece, spec, device, whole);
    // Before: each rank's own rectangles in zeros; after: the whole tensor, exactly.
    const Buffer buffer(device, whole.size());
    const Tensor sum(buffer.data(), type, {spec.shape.elements()});
    device.copy_in(sum, whole.data());
    groups.all_reduce(sum, Reduce::sum);
    device.copy_out(whole.data(), sum);
    if (leader) wholes.push_back(std::move(whole));
  }
  if (!leader) return;
  const auto host = make_reference_device();
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (size_t i = 0; i < table.size(); ++i)
    tensors.emplace_back(table[i].name, Tensor(wholes[i].data(), type, table[i].shape));
  fs::create_directories(file.parent_path());
  write_safetensors(file, tensors, *host);
}

}  // namespace hearth
