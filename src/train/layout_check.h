// Whether every layout trains the same model: a tiny GPT in fp64 on the reference device, in some layout as
// threads of this process, against one process.
//
// Compared are the losses, the norms, each gradient tensor of the first step and the weights after three
// steps. Dropout is on, masks are ragged, clipping is active.  `hearth check layouts` and the tests share it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "parallel/thread_ranks.h"
#include "train/config.h"
#include "train/step.h"

namespace hearth {

struct Layout {
  int tensor = 1, data = 1, pipeline = 1;
  int zero = 0;
  const char* schedule = "1f1b";
  int chunks = 1;
  Recompute recompute = Recompute::none;
  bool tied = true;
  bool sequence = false;
  int64_t rows = 1;  // of a microbatch
  Precision precision = Precision::fp64;
  // Of the model and its step: how far it can be split.
  int64_t layers = 5, batch = 12;

  int ranks() const { return tensor * data * pipeline; }
};

RunConfig config_of(const Layout& layout);

// What a run leaves: whole tensors, put together from the ranks' rectangles.
struct Trace {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> gradients;  // of the first step
  std::map<std::string, std::vector<double>> weights;    // after three steps
};

// What a test may change about the ranks of a layout.
struct Alterations {
  Decorate decorate;  // of the communicators
  std::function<std::unique_ptr<Device>()> device = make_reference_device;
  std::function<void(const Grid&, StepTables&)> tables = [](const Grid&, StepTables&) {};
};

// Trains three steps.
Trace trace_of(const Layout& layout, const Alterations& alterations = {});

// The largest relative error of anything, and where.
struct Difference {
  double error = 0;
  std::string where = "nothing";
};
Difference difference(const Trace& a, const Trace& b);

// All layouts of at most `ranks` ranks that the model can be split into, with and without ZeRO and sequence
// parallelism; one process first.
std::vector<Layout> layouts_within(int ranks);

// The largest error of layouts that train the same model: rounding of fp64.
constexpr double layout_tolerance = 1e-10;

// Compares each layout with one process, calls `on_result` for each as it comes, and returns the worst.
Difference check_layouts(const std::vector<Layout>& layouts,
                         const std::function<void(const Layout&, const Difference&)>& on_result,
                         const Alterations& alterations = {});

}  // namespace hearth
