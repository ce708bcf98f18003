// Every layout trains the same model: loss, each gradient tensor, the norm, and the weights after three
// steps, against one process.
#include <gtest/gtest.h>

#include "parallel/layout_trace.h"

namespace hearth {
namespace {

class LayoutParity : public ::testing::TestWithParam<Layout> {};

TEST_P(LayoutParity, TrainsTheSameModel) {
  const auto [error, where] = difference(trace_of(GetParam()), testing::alone(GetParam().tied));
  EXPECT_LT(error, 1e-10) << where;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LayoutParity,
    ::testing::Values(Layout{}, Layout{.tensor = 2}, Layout{.tensor = 8}, Layout{.data = 2},
                      Layout{.data = 3}, Layout{.data = 3, .zero = 1},
                      Layout{.data = 4, .zero = 1, .tied = false}, Layout{.pipeline = 2},
                      Layout{.pipeline = 5}, Layout{.pipeline = 3, .schedule = "gpipe"},
                      Layout{.pipeline = 2, .schedule = "interleaved", .chunks = 2},
                      Layout{.pipeline = 2, .tied = false}, Layout{.tensor = 2, .data = 2, .zero = 1},
                      Layout{.tensor = 2, .data = 2, .pipeline = 2},
                      Layout{.tensor = 2, .data = 2, .pipeline = 2, .zero = 1, .recompute = Recompute::block},
                      Layout{.tensor = 4, .pipeline = 2, .recompute = Recompute::selective},
                      Layout{.data = 4, .pipeline = 2, .zero = 1, .schedule = "gpipe", .tied = false},
                      Layout{.data = 2, .pipeline = 2, .zero = 1, .schedule = "interleaved", .chunks = 2}),
    [](const auto& info) { return testing::name_of(info.param); });

}  // namespace
}  // namespace hearth
