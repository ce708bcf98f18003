#include "comm/grid.h"

#include <algorithm>

#include "base/error.h"

namespace hearth {

std::string name_of(Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return "tensor";
    case Axis::context:
      return "context";
    case Axis::data:
      return "data";
    case Axis::pipeline:
      return "pipeline";
  }
  return "?";
}

Grid::Grid(int tensor, int data, int pipeline, int rank) : size_{tensor, 1, data, pipeline}, rank_(rank) {
  check(tensor >= 1 && data >= 1 && pipeline >= 1, "a grid of ", tensor, " x ", data, " x ", pipeline);
  check(rank >= 0 && rank < world(), "rank ", rank, " in a grid of ", world());
}

int Grid::world() const {
  int product = 1;
  for (int size : size_)
    product *= size;
  return product;
}

int Grid::stride(Axis axis) const {
  int product = 1;
  for (size_t inner = 0; inner < index(axis); ++inner)
    product *= size_[inner];
  return product;
}

int Grid::at(Axis axis, int rank) const {
  return rank / stride(axis) % size(axis);
}

int Grid::neighbour(Axis axis, int place) const {
  check(place >= 0 && place < size(axis), "place ", place, " on an axis of ", size(axis));
  return rank_ + (place - at(axis)) * stride(axis);
}

std::vector<int> Grid::group(std::initializer_list<Axis> along) const {
  const auto differs_only_along = [&](int other) {
    return std::all_of(all_axes.begin(), all_axes.end(), [&](Axis axis) {
      const bool free = std::find(along.begin(), along.end(), axis) != along.end();
      return free || at(axis, other) == at(axis);
    });
  };
  std::vector<int> ranks;
  for (int other = 0; other < world(); ++other)
    if (differs_only_along(other)) ranks.push_back(other);
  return ranks;
}

std::string Grid::describe(int rank) const {
  std::string places;
  for (Axis axis : all_axes)
    if (size(axis) > 1)
      places += text(places.empty() ? " = " : ", ", name_of(axis), " ", at(axis, rank), " of ", size(axis));
  return text("rank ", rank, places);
}

}  // namespace hearth
