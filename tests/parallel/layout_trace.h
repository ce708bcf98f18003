// Layouts in tests: their names, and the trace of one process that all are compared with.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "train/layout_check.h"

namespace hearth::testing {

inline std::string name_of(const Layout& l) {
  return text("t", l.tensor, "_d", l.data, "_p", l.pipeline, "_zero", l.zero, "_",
              std::string(l.schedule) == "1f1b" ? "onefoneb" : l.schedule, l.chunks, "_r",
              static_cast<int>(l.recompute), l.tied ? "_tied" : "_untied", l.sequence ? "_sequence" : "",
              l.rows > 1 ? text("_rows", l.rows) : "");
}

// Of one process that trains the model and batch of `layout`.
inline const Trace& alone(const Layout& layout = {}) {
  static std::map<std::tuple<bool, int64_t, int64_t>, Trace> traces;
  const auto key = std::tuple(layout.tied, layout.layers, layout.batch);
  if (!traces.contains(key))
    traces[key] = trace_of({.tied = layout.tied, .layers = layout.layers, .batch = layout.batch});
  return traces.at(key);
}

}  // namespace hearth::testing

namespace hearth {

inline void PrintTo(const Layout& layout, std::ostream* out) {
  *out << testing::name_of(layout);
}

}  // namespace hearth
