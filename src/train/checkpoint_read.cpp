// Reading a checkpoint: everything is verified when it is opened; then any rectangle of any tensor is put
// together from the pieces that cover it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "train/checkpoint.h"
#include "train/checkpoint_manifest.h"
#include "train/safetensors.h"

namespace hearth {
namespace {

constexpr int64_t buffer_bytes = 8 << 20;
constexpr int rank = Shape::max_rank;

// A rectangle of a tensor whose missing leading dimensions count as 1.
struct Rectangle {
  std::array<int64_t, rank> begin{};
  std::array<int64_t, rank> end{};

  Rectangle(const std::vector<int64_t>& start, const Shape& shape) {
    end.fill(1);
    for (int i = 0; i < shape.rank(); ++i) {
      const size_t at = static_cast<size_t>(rank - shape.rank() + i);
      begin[at] = start[static_cast<size_t>(i)];
      end[at] = begin[at] + shape[i];
    }
  }

  int64_t size(size_t i) const { return end[i] - begin[i]; }
  bool empty() const {
    for (size_t i = 0; i < rank; ++i)
      if (size(i) <= 0) return true;
    return false;
  }
  Rectangle intersected(const Rectangle& other) const {
    Rectangle r = *this;
    for (size_t i = 0; i < rank; ++i) {
      r.begin[i] = std::max(begin[i], other.begin[i]);
      r.end[i] = std::min(end[i], other.end[i]);
    }
    return r;
  }
  // What is left of this rectangle without `hole`, which lies in it: at most two slabs per dimension.
  void subtract(const Rectangle& hole, std::vector<Rectangle>& rest) const {
    Rectangle middle = *this;
    for (size_t i = 0; i < rank; ++i) {
      Rectangle before = middle, after = middle;
      before.end[i] = hole.begin[i];
      after.begin[i] = hole.end[i];
      if (!before.empty()) rest.push_back(before);
      if (!after.empty()) rest.push_back(after);
      middle.begin[i] = hole.begin[i];
      middle.end[i] = hole.end[i];
    }
  }
  // Position, counted in elements, of the global index `at` in this rectangle stored contiguously.
  int64_t offset(const std::array<int64_t, rank>& at) const {
    int64_t position = 0;
    for (size_t i = 0; i < rank; ++i)
      position = position * size(i) + (at[i] - begin[i]);
    return position;
  }
};

// "[0:4, 8:12]" for the last `dimensions` dimensions.
std::string to_string(const Rectangle& r, int dimensions) {
  std::string out = "[";
  for (size_t i = static_cast<size_t>(rank - dimensions); i < rank; ++i)
    out += text(out.size() > 1 ? ", " : "", r.begin[i], ":", r.end[i]);
  return out + "]";
}

// The part of a wanted rectangle that one stored piece delivers.
struct Source {
  Rectangle part;
  Rectangle piece;
  const std::byte* data;  // of the piece, contiguous
};

// Copies the elements of `part` from one contiguous rectangle to another.
void copy_part(const Rectangle& part, const Rectangle& from, const std::byte* source, const Rectangle& to,
               std::byte* target, size_t element) {
  const size_t run = static_cast<size_t>(part.size(rank - 1)) * element;
  std::array<int64_t, rank> at = part.begin;
  for (at[0] = part.begin[0]; at[0] < part.end[0]; ++at[0])
    for (at[1] = part.begin[1]; at[1] < part.end[1]; ++at[1])
      for (at[2] = part.begin[2]; at[2] < part.end[2]; ++at[2])
        std::memcpy(target + static_cast<size_t>(to.offset(at)) * element,
                    source + static_cast<size_t>(from.offset(at)) * element, run);
}

// Gives the pages of a map back, so that a big checkpoint does not count as resident memory once it was used.
void release_pages(std::span<const std::byte> bytes) {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  if (!bytes.empty()) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void verify(const MappedFile& file, const ManifestFile& expected) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() != expected.size)
    fail_data(file.path().string(), " is damaged: it has ", bytes.size(), " bytes, and the manifest says ",
              expected.size);
  uint32_t crc = 0;
  for (size_t begin = 0; begin < bytes.size(); begin += buffer_bytes) {
    const auto block = bytes.subspan(begin, std::min<size_t>(buffer_bytes, bytes.size() - begin));
    crc = crc32c(block, crc);
    release_pages(block);
  }
  if (crc != expected.crc)
    fail_data(file.path().string(), " is damaged: the checksum of its ", bytes.size(),
              " bytes is not the one in the manifest");
}

}  // namespace

struct CheckpointReader::State {
  fs::path path;
  Manifest manifest;
  std::map<std::string, SafetensorsFile> files;

  void open_files();
  void check_piece(const ManifestPiece& piece) const;
  const std::vector<ManifestPiece>& pieces(const CheckpointPiece& wanted) const;
  std::vector<Source> sources(const CheckpointPiece& wanted, const Rectangle& rectangle) const;
};

void CheckpointReader::State::open_files() {
  for (const ManifestFile& file : manifest.files) {
    const MappedFile map(path / file.name);
    verify(map, file);
    if (file.name == checkpoint_names::tokenizer) manifest.state.tokenizer_json = map.chars();
    if (file.name.ends_with(".safetensors")) files.emplace(file.name, SafetensorsFile(path / file.name));
  }
  for (const auto& [name, tensor] : manifest.tensors)
    for (const auto& kind : tensor.pieces)
      for (const ManifestPiece& piece : kind)
        check_piece(piece);
}

// The manifest and the tensor files are two statements about the same thing.
void CheckpointReader::State::check_piece(const ManifestPiece& piece) const {
  const auto file = files.find(piece.file);
  const SafetensorsEntry* entry = file == files.end() ? nullptr : file->second.find(piece.key);
  if (entry == nullptr)
    fail_data(path.string(), " is damaged: ", hearth::quoted(piece.file), " has no tensor ",
              hearth::quoted(piece.key));
  if (entry->shape != piece.shape)
    fail_data(path.string(), " is damaged: tensor ", hearth::quoted(piece.key), " has shape ", entry->shape,
              " in ", hearth::quoted(piece.file), " and ", piece.shape, " in the manifest");
}

const std::vector<ManifestPiece>& CheckpointReader::State::pieces(const CheckpointPiece& wanted) const {
  const auto tensor = manifest.tensors.find(wanted.name);
  const std::string key = checkpoint_names::key(wanted.kind, wanted.name);
  if (tensor == manifest.tensors.end() || tensor->second.pieces[static_cast<size_t>(wanted.kind)].empty())
    fail_data("checkpoint ", path.string(), " has no tensor ", hearth::quoted(key),
              "; its model is not the one of this configuration");
  if (tensor->second.shape != wanted.global_shape)
    fail_data("tensor ", hearth::quoted(key), " has shape ", tensor->second.shape, " in the checkpoint ",
              path.string(), " and ", wanted.global_shape,
              " in this configuration; their [model] sections differ");
  return tensor->second.pieces[static_cast<size_t>(wanted.kind)];
}

// Which stored pieces deliver which parts of `rectangle`, together all of it and nothing twice.
std::vector<Source> CheckpointReader::State::sources(const CheckpointPiece& wanted,
                                                     const Rectangle& rectangle) const {
  std::vector<Source> found;
  std::vector<Rectangle> missing;
  if (!rectangle.empty()) missing.push_back(rectangle);
  for (const ManifestPiece& piece : pieces(wanted)) {
    const SafetensorsFile& file = files.at(piece.file);
    const SafetensorsEntry& entry = *file.find(piece.key);
    if (entry.dtype != wanted.local.dtype)
      fail_data("tensor ", hearth::quoted(piece.key), " has type ", name_of(entry.dtype),
                " in the checkpoint ", path.string(), " and ", name_of(wanted.local.dtype),
                " in this run; resume with the train.precision it was saved with");
    const Rectangle stored(piece.start, piece.shape);
    std::vector<Rectangle> rest;
    for (const Rectangle& part : missing) {
      const Rectangle common = part.intersected(stored);
      if (common.empty()) {
        rest.push_back(part);
        continue;
      }
      found.push_back({common, stored, file.bytes(entry).data()});
      part.subtract(common, rest);
    }
    missing = std::move(rest);
  }
  if (!missing.empty())
    fail_data("checkpoint ", path.string(), " is incomplete: no piece has elements ",
              to_string(missing.front(), wanted.global_shape.rank()), " of tensor ",
              hearth::quoted(checkpoint_names::key(wanted.kind, wanted.name)), " of shape ",
              wanted.global_shape);
  return found;
}

CheckpointReader::CheckpointReader(const fs::path& checkpoint) : state_(std::make_unique<State>()) {
  state_->path = checkpoint;
  state_->manifest = read_manifest(checkpoint);
  state_->open_files();
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

const CheckpointState& CheckpointReader::state() const {
  return state_->manifest.state;
}

const fs::path& CheckpointReader::path() const {
  return state_->path;
}

std::vector<std::pair<std::string, Shape>> CheckpointReader::tensors() const {
  std::vector<std::pair<std::string, Shape>> masters;
  for (const auto& [name, tensor] : state_->manifest.tensors)
    if (has(CheckpointPiece::Kind::master, name)) masters.emplace_back(name, tensor.shape);
  return masters;
}

bool CheckpointReader::has(CheckpointPiece::Kind kind, const std::string& name) const {
  const auto tensor = state_->manifest.tensors.find(name);
  return tensor != state_->manifest.tensors.end() &&
         !tensor->second.pieces[static_cast<size_t>(kind)].empty();
}

void CheckpointReader::read(const CheckpointPiece& piece, Device& device) const {
  const Tensor& local = piece.local;
  check(local.contiguous() && local.shape.rank() == piece.global_shape.rank() &&
            std::ssize(piece.start) == local.shape.rank(),
        "read of ", piece.name, ": local ", local.shape, ", global ", piece.global_shape);
  const Rectangle wanted(piece.start, local.shape);
  const std::vector<Source> sources = state_->sources(piece, wanted);
  if (wanted.empty()) return;

  // Slabs along the first dimension that the tensor really has: as many rows as fit the buffer, at least one.
  const size_t slab = static_cast<size_t>(rank - std::max(local.shape.rank(), 1));
  const int64_t rows = wanted.size(slab);
  const int64_t row_elements = local.elements() / rows;
  const size_t element = static_cast<size_t>(size_of(local.dtype));
  const int64_t step = std::clamp<int64_t>(buffer_bytes / (row_elements * size_of(local.dtype)), 1, rows);
  const Tensor flat = local.reshaped({local.elements()});
  std::vector<std::byte> buffer(static_cast<size_t>(step * row_elements) * element);
  for (int64_t row = 0; row < rows; row += step) {
    Rectangle part = wanted;
    part.begin[slab] = wanted.begin[slab] + row;
    part.end[slab] = std::min(part.begin[slab] + step, wanted.end[slab]);
    for (const Source& source : sources) {
      const Rectangle common = part.intersected(source.part);
      if (!common.empty()) copy_part(common, source.piece, source.data, part, buffer.data(), element);
    }
    device.copy_in(flat.slice(0, row * row_elements, part.size(slab) * row_elements), buffer.data());
  }
}

}  // namespace hearth
