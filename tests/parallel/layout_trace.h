// Layouts in tests: their names, and the trace of one process that all are compared with.
#pragma once

#include <string>

#include "train/layout_check.h"

namespace hearth::testing {

inline std::string name_of(const Layout& l) {
  return text("t", l.tensor, "_d", l.data, "_p", l.pipeline, "_zero", l.zero, "_",
              std::string(l.schedule) == "1f1b" ? "onefoneb" : l.schedule, l.chunks, "_r",
              static_cast<int>(l.recompute), l.tied ? "_tied" : "_untied");
}

inline const Trace& alone(bool tied) {
  static const Trace traces[2] = {trace_of({.tied = false}), trace_of({.tied = true})};
  return traces[tied ? 1 : 0];
}

}  // namespace hearth::testing
