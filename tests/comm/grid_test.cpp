#include "comm/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace hearth {
namespace {

// Calls test(T, D, P) for all boxes of at most `most` ranks.
template <class Test>
void for_all_grids(int most, const Test& test) {
  for (int tensor = 1; tensor <= most; ++tensor)
    for (int data = 1; tensor * data <= most; ++data)
      for (int pipeline = 1; tensor * data * pipeline <= most; ++pipeline)
        test(tensor, data, pipeline);
}

TEST(Grid, RanksCountTensorFirstThenDataThenPipeline) {
  for_all_grids(64, [](int T, int D, int P) {
    int rank = 0;
    for (int p = 0; p < P; ++p)
      for (int d = 0; d < D; ++d)
        for (int t = 0; t < T; ++t, ++rank) {
          const Grid grid(T, D, P, rank);
          ASSERT_EQ(grid.at(Axis::tensor), t);
          ASSERT_EQ(grid.at(Axis::data), d);
          ASSERT_EQ(grid.at(Axis::pipeline), p);
          ASSERT_EQ(grid.at(Axis::context), 0);
          ASSERT_EQ(grid.first(Axis::pipeline), p == 0);
          ASSERT_EQ(grid.last(Axis::pipeline), p == P - 1);
          for (int other = 0; other < P; ++other)
            ASSERT_EQ(grid.neighbour(Axis::pipeline, other), t + T * (d + D * other));
        }
    ASSERT_EQ(Grid(T, D, P, 0).world(), rank);
  });
}

// Along an axis, the groups divide the world: every rank is in one, at its own place.
TEST(Grid, GroupsPartitionTheWorld) {
  for_all_grids(64, [](int T, int D, int P) {
    const int world = T * D * P;
    for (Axis axis : all_axes) {
      std::set<std::vector<int>> groups;
      for (int rank = 0; rank < world; ++rank) {
        const Grid grid(T, D, P, rank);
        const std::vector<int> group = grid.group(axis);
        ASSERT_EQ(static_cast<int>(group.size()), grid.size(axis));
        ASSERT_EQ(group[static_cast<size_t>(grid.at(axis))], rank);
        groups.insert(group);
      }
      ASSERT_EQ(static_cast<int>(groups.size()) * Grid(T, D, P, 0).size(axis), world);
    }
  });
}

TEST(Grid, GroupsAlongSeveralAxes) {
  for_all_grids(24, [](int T, int D, int P) {
    for (int rank = 0; rank < T * D * P; ++rank) {
      const Grid grid(T, D, P, rank);
      const std::vector<int> model = grid.group({Axis::tensor, Axis::pipeline});
      ASSERT_EQ(static_cast<int>(model.size()), T * P);
      ASSERT_TRUE(std::is_sorted(model.begin(), model.end()));
      for (int other : model)
        ASSERT_EQ(grid.at(Axis::data, other), grid.at(Axis::data));
    }
  });
}

TEST(Grid, DescribesARank) {
  EXPECT_EQ(Grid(2, 4, 2, 0).describe(13), "rank 13 = tensor 1 of 2, data 2 of 4, pipeline 1 of 2");
  EXPECT_EQ(Grid(1, 4, 1, 0).describe(3), "rank 3 = data 3 of 4");
  EXPECT_EQ(Grid().describe(0), "rank 0");
}

}  // namespace
}  // namespace hearth
