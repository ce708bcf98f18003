// What a run of the benchmark found: as a table, as JSON, and compared with an earlier one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/measure.h"

namespace hearth::bench {

// FLOP/s and bytes/s.
struct Ceilings {
  double flops = 0, bandwidth = 0;
};

struct Result {
  std::string name, shape;
  std::string engine;      // of matrix products, "native" or "cublaslt"; "" where there is no choice
  std::string error = {};  // a wrong result or a failure: then there are no numbers
  Timing timing = {};
  double flops = 0, bytes = 0;

  std::string key() const { return name + " [" + shape + "]" + (engine.empty() ? "" : " " + engine); }
  // The time that the ceilings allow, over the measured time.
  double share_of(const Ceilings& ceilings) const;
};

struct Report {
  std::string device, precision;
  Ceilings measured;                  // by a large product and a copy, in the same process
  std::optional<Ceilings> datasheet;  // unknown for CPUs and some GPUs
  std::vector<Result> results;

  bool all_correct() const;
};

std::string table_head(const Report& report);
// One line; `other` is the same case on the other engine, when that was measured.
std::string table_line(const Report& report, const Result& result, const Result* other);

std::string to_json(const Report& report);
// Throws Error(data) with `path` when the text is not such a report.
Report from_json(const std::string& json, const std::string& path);

// A difference of the medians that is not larger than the spread (p90 - p10) of either run is no difference.
enum class Verdict : uint8_t { same, faster, slower, now_wrong, now_right, only_old, only_new };
struct Change {
  std::string key;
  Verdict verdict;
  double ratio = 1;  // old time / new time: 2 is twice as fast
};
std::vector<Change> compare(const Report& before, const Report& after);
std::string comparison_text(const Report& before, const Report& after);

}  // namespace hearth::bench
