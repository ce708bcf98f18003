// Every layout trains the same model: loss, each gradient tensor, the norm, and the weights after three
// steps, against one process.
#include <gtest/gtest.h>

#include <cstdlib>

#include "parallel/layout_trace.h"

namespace hearth {
namespace {

using testing::alone;
using testing::name_of;

class LayoutParity : public ::testing::TestWithParam<Layout> {};

TEST_P(LayoutParity, TrainsTheSameModel) {
  const auto [error, where] = difference(trace_of(GetParam()), alone(GetParam()));
  EXPECT_LT(error, layout_tolerance) << where;
}

// Every value of every option meets the values that could spoil it.
std::vector<Layout> covering_layouts() {
  constexpr Recompute block = Recompute::block, selective = Recompute::selective;
  return {
      {},
      {.tensor = 2},
      {.tensor = 8},
      {.data = 2},
      {.data = 3},
      {.data = 3, .zero = 1},
      {.data = 4, .zero = 1, .tied = false},
      {.pipeline = 2},
      {.pipeline = 5},
      {.pipeline = 3, .schedule = "gpipe"},
      {.pipeline = 2, .schedule = "interleaved", .chunks = 2},
      {.pipeline = 2, .tied = false},
      {.tensor = 2, .data = 2, .zero = 1},
      {.tensor = 2, .data = 2, .pipeline = 2},
      {.tensor = 2, .data = 2, .pipeline = 2, .zero = 1, .recompute = block},
      {.tensor = 4, .pipeline = 2, .recompute = selective},
      {.data = 4, .pipeline = 2, .zero = 1, .schedule = "gpipe", .tied = false},
      {.data = 2, .pipeline = 2, .zero = 1, .schedule = "interleaved", .chunks = 2},
      {.tensor = 2, .sequence = true},
      {.tensor = 8, .tied = false, .sequence = true},
      // Microbatches of several samples: shards that are whole samples, parts of one, and parts of two.
      {.tensor = 2, .sequence = true, .rows = 4},
      {.tensor = 4, .recompute = block, .sequence = true, .rows = 2},
      {.tensor = 2, .recompute = selective, .sequence = true, .rows = 3},
      {.tensor = 2, .data = 2, .zero = 1, .sequence = true, .rows = 3},
      {.tensor = 2, .data = 3, .zero = 1, .recompute = block, .sequence = true},
      {.tensor = 2, .data = 3, .sequence = true, .rows = 2},
      {.tensor = 2, .pipeline = 2, .sequence = true, .rows = 3},
      {.tensor = 4, .pipeline = 2, .schedule = "gpipe", .tied = false, .sequence = true},
      {.tensor = 2, .pipeline = 2, .schedule = "interleaved", .chunks = 2, .sequence = true},
      {.tensor = 2, .data = 2, .pipeline = 2, .zero = 1, .recompute = selective, .sequence = true},
  };
}

// The smallest model and batch that T x D x P ranks can share.
Layout smallest(int tensor, int data, int pipeline, int chunks) {
  Layout layout{.tensor = tensor, .data = data, .pipeline = pipeline, .chunks = chunks};
  layout.layers = pipeline * chunks <= 5 ? 5 : 8;
  layout.batch = 12 % data == 0 ? 12 : data * 4;
  return layout;
}

// All combinations of a layout's options, without those that change nothing.
void add_options(std::vector<Layout>& all, const Layout& layout) {
  for (const bool sequence : {false, true})
    for (const int zero : {0, 1})
      for (const bool tied : {true, false})
        for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::block}) {
          if ((sequence && layout.tensor == 1) || (zero == 1 && layout.data == 1)) continue;
          Layout l = layout;
          l.sequence = sequence;
          l.zero = zero;
          l.tied = tied;
          l.recompute = recompute;
          all.push_back(l);
        }
}

// Every T x D x P of at most 8 ranks with every option; `make test-long` asks for them.
std::vector<Layout> all_layouts() {
  std::vector<Layout> all;
  for (const int tensor : {1, 2, 4, 8})
    for (int data = 1; tensor * data <= 8; ++data)
      for (int pipeline = 1; tensor * data * pipeline <= 8; ++pipeline)
        for (const char* schedule : {"1f1b", "gpipe", "interleaved"}) {
          const bool interleaved = std::string(schedule) == "interleaved";
          Layout layout = smallest(tensor, data, pipeline, interleaved ? 2 : 1);
          layout.schedule = schedule;
          if (pipeline == 1 && std::string(schedule) != "1f1b") continue;
          const bool fits = pipeline * layout.chunks <= layout.layers && layout.batch / data % pipeline == 0;
          if (!interleaved || fits) add_options(all, layout);
        }
  return all;
}

std::vector<Layout> layouts_of_this_run() {
  const char* all = std::getenv("HEARTH_ALL_LAYOUTS");
  return all && *all ? all_layouts() : covering_layouts();
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutParity, ::testing::ValuesIn(layouts_of_this_run()),
                         [](const auto& info) { return name_of(info.param); });

TEST(LayoutList, AllHasEveryKind) {
  const std::vector<Layout> all = all_layouts();
  EXPECT_GT(all.size(), 600u);
  std::map<std::string, int> names;
  for (const Layout& l : all)
    EXPECT_EQ(++names[name_of(l)], 1) << name_of(l);
  for (const char* name :
       {"t2_d2_p2_zero1_interleaved2_r2_untied_sequence", "t1_d7_p1_zero1_onefoneb1_r0_tied",
        "t1_d1_p8_zero0_gpipe1_r1_tied", "t8_d1_p1_zero0_onefoneb1_r2_tied_sequence"})
    EXPECT_TRUE(names.contains(name)) << name;
}

// The fast CPU device in fp32, against one process of its kind.
TEST(LayoutParityCpu, Fp32) {
  const Alterations on_cpu{.decorate = {}, .device = [] { return make_cpu_device(1); }};
  const auto fp32 = [](Layout layout) {
    layout.precision = Precision::fp32;
    return layout;
  };
  const Trace one = trace_of(fp32({}), on_cpu);
  for (const Layout& layout :
       {Layout{.tensor = 2}, Layout{.tensor = 4, .sequence = true, .rows = 2}, Layout{.data = 3, .zero = 1},
        Layout{.pipeline = 5, .schedule = "gpipe"}, Layout{.tensor = 2, .sequence = true, .rows = 3},
        Layout{.tensor = 2,
        .data = 2,
        .pipeline = 2,
        .zero = 1,
        .recompute = Recompute::block,
        .sequence = true}}) {
    const auto [error, where] = difference(trace_of(fp32(layout), on_cpu), one);
    EXPECT_LT(error, 1e-5) << name_of(layout) << " " << where;
    std::printf("  %-60s %.1e at %s\n", name_of(layout).c_str(), error, where.c_str());
    EXPECT_GT(error, 0) << name_of(layout) << ": nothing was compared";
  }
}

// Gradients with recomputation have the same bits, also when its collectives are made again.
TEST(SequenceParallel, RecomputeChangesNoBit) {
  const Trace kept = trace_of({.tensor = 2, .sequence = true, .rows = 3});
  for (const Recompute recompute : {Recompute::selective, Recompute::block})
    EXPECT_EQ(
        difference(trace_of({.tensor = 2, .recompute = recompute, .sequence = true, .rows = 3}), kept).error,
        0);
}

}  // namespace
}  // namespace hearth
