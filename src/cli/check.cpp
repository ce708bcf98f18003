// `hearth check layouts`: whether every layout trains the same model, on this machine, now.
#include <cstdio>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "train/layout_check.h"

namespace hearth {
namespace {

CommandSpec spec() {
  return {
      .name = "check",
      .about =
          "hearth check layouts trains a tiny GPT for three steps in every tensor x data x pipeline layout "
          "of at most N ranks, with and without sequence parallelism and ZeRO, in fp64 on the reference "
          "device with the ranks as threads, and compares "
          "losses, norms, each gradient tensor and the weights with those of one process.  Exit code 70 "
          "when one differs by more than rounding.  Its 8 heads, 8 layers and batch of 24 leave out 3, 5, 6 "
          "and 7 "
          "tensor ranks, and 5 and 7 data ranks.",
      .positional = "layouts",
      .options = {{"n", "N", "8", "most ranks of a layout"}}};
}

void print_result(const Layout& l, const Difference& d) {
  std::printf("%6d %5d %9d %9s %5d   %9.1e   %-34s%s\n", l.tensor, l.data, l.pipeline,
              l.sequence ? "yes" : "no", l.zero, d.error, d.where.c_str(),
              d.error <= layout_tolerance ? "" : "DIFFERS");
  std::fflush(stdout);
}

}  // namespace

ExitCode run_check(const CommandLine& line) {
  const Arguments arguments(spec(), line.arguments);
  if (arguments.help()) {
    std::fputs(help_text(spec()).c_str(), stdout);
    return ExitCode::done;
  }
  const std::string& what = arguments.positional().front();
  if (what != "layouts") fail_usage("hearth check ", quoted(what), ", expected: hearth check layouts");
  const auto ranks = static_cast<int>(arguments.whole("n", 1, 64));
  const std::vector<Layout> layouts = layouts_within(ranks);
  std::printf("tensor  data  pipeline  sequence  zero   max error   where\n");
  const Difference worst = check_layouts(layouts, print_result);
  if (!(worst.error <= layout_tolerance))
    throw Error(ExitCode::numerical, text("a layout trains another model: relative error ", worst.error,
                                          " at ", worst.where, ", expected at most ", layout_tolerance));
  std::printf("%zu layouts agree with one process within %.0e\n", layouts.size(), layout_tolerance);
  return ExitCode::done;
}

}  // namespace hearth
