// Grid: which rank stands where.
//
// The ranks of a run form a box with the axes tensor, context, data and pipeline; tensor varies fastest, so
// that the ranks that talk most are neighbours in a node.  With a context axis of one (it is only a seam),
//     rank = t + T * (d + D * p).
// A group is a slice of the box: the ranks that differ along one axis, or along several.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace hearth {

enum class Axis : uint8_t { tensor, context, data, pipeline };  // in the order of the strides
constexpr std::array all_axes{Axis::tensor, Axis::context, Axis::data, Axis::pipeline};

// "tensor"
std::string name_of(Axis axis);

class Grid {
 public:
  // One rank.
  Grid() = default;
  // Sizes are at least one and `rank` is below their product (programming errors otherwise: the config is
  // checked before).
  Grid(int tensor, int data, int pipeline, int rank);

  int rank() const { return rank_; }
  int world() const;
  int size(Axis axis) const { return size_[index(axis)]; }
  // This rank's place on an axis, and any rank's.
  int at(Axis axis) const { return at(axis, rank_); }
  int at(Axis axis, int rank) const;
  bool first(Axis axis) const { return at(axis) == 0; }
  bool last(Axis axis) const { return at(axis) == size(axis) - 1; }

  // The rank at this rank's place but for `axis`, where it is at `place`.
  int neighbour(Axis axis, int place) const;
  // The ranks that differ from this one only along these axes, ascending; this rank is among them.
  std::vector<int> group(std::initializer_list<Axis> along) const;
  std::vector<int> group(Axis along) const { return group({along}); }

  // "rank 13 = tensor 1 of 2, data 2 of 4, pipeline 1 of 2"; axes of size one are left out.
  std::string describe(int rank) const;

 private:
  static constexpr size_t index(Axis axis) { return static_cast<size_t>(axis); }
  int stride(Axis axis) const;

  std::array<int, all_axes.size()> size_{1, 1, 1, 1};
  int rank_ = 0;
};

}  // namespace hearth
