#include "bench/result.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace hearth::bench {

namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char line[512];
  std::snprintf(line, sizeof line, pattern, values...);
  return line;
}

std::string rate_text(double flops, double bytes, double seconds) {
  if (flops > 0) return format("%8.3f TFLOP/s", flops / seconds / 1e12);
  return format("%8.1f GB/s   ", bytes / seconds / 1e9);
}

}  // namespace

double Result::share_of(const Ceilings& ceilings) const {
  return std::max(flops / ceilings.flops, bytes / ceilings.bandwidth) / timing.median;
}

bool Report::all_correct() const {
  return std::all_of(results.begin(), results.end(), [](const Result& r) { return r.error.empty(); });
}

// ---- table

std::string table_head(const Report& report) {
  const auto ceilings = [](const Ceilings& c) {
    return format("%.3f TFLOP/s, %.1f GB/s", c.flops / 1e12, c.bandwidth / 1e9);
  };
  return text("device     ", report.device, ", ", report.precision, "\n",  //
              "measured   ", ceilings(report.measured), " (a large product, a copy)\n", "datasheet  ",
              report.datasheet ? ceilings(*report.datasheet) : "unknown", "\n",
              format("%-38s %-28s %-8s %10s %10s %10s %16s %7s %7s %s", "operation", "shape", "engine",
                     "median us", "p10", "p90", "rate", "of peak", "sheet", "native/lt"));
}

std::string table_line(const Report& report, const Result& r, const Result* other) {
  const std::string start =
      format("%-38s %-28s %-8s ", r.name.c_str(), r.shape.c_str(), r.engine.empty() ? "-" : r.engine.c_str());
  if (!r.error.empty()) return start + "WRONG: " + r.error;
  const std::string sheet =
      report.datasheet ? format("%6.1f%%", 100 * r.share_of(*report.datasheet)) : "      -";
  const bool comparable = other && other->error.empty() && other != &r;
  return start +
         format("%10.2f %10.2f %10.2f ", r.timing.median * 1e6, r.timing.p10 * 1e6, r.timing.p90 * 1e6) +
         rate_text(r.flops, r.bytes, r.timing.median) +
         format(" %6.1f%% %s", 100 * r.share_of(report.measured), sheet.c_str()) +
         (comparable ? format(" %8.2f", other->timing.median / r.timing.median) : "");
}

// ---- JSON

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Ceilings& c) {
  return {{"flops_per_second", c.flops}, {"bytes_per_second", c.bandwidth}};
}
Ceilings ceilings_of(const Json& j) {
  return {j.at("flops_per_second"), j.at("bytes_per_second")};
}

Json json_of(const Result& r, const Report& report) {
  Json j = {{"name", r.name}, {"shape", r.shape}, {"engine", r.engine}};
  if (!r.error.empty()) {
    j["error"] = r.error;
    return j;
  }
  j["median_seconds"] = r.timing.median;
  j["p10_seconds"] = r.timing.p10;
  j["p90_seconds"] = r.timing.p90;
  j["samples"] = r.timing.samples;
  j["calls_per_sample"] = r.timing.calls_per_sample;
  j["flops"] = r.flops;
  j["bytes"] = r.bytes;
  j["share_of_measured"] = r.share_of(report.measured);
  j["share_of_datasheet"] = report.datasheet ? Json(r.share_of(*report.datasheet)) : Json(nullptr);
  return j;
}

Result result_of(const Json& j) {
  Result r{.name = j.at("name"), .shape = j.at("shape"), .engine = j.at("engine")};
  if (j.contains("error")) {
    r.error = j.at("error");
    return r;
  }
  r.timing = {j.at("median_seconds"), j.at("p10_seconds"), j.at("p90_seconds"), j.at("samples"),
              j.at("calls_per_sample")};
  r.flops = j.at("flops");
  r.bytes = j.at("bytes");
  return r;
}

}  // namespace

std::string to_json(const Report& report) {
  Json j = {{"format", "hearth-bench 1"},
            {"device", report.device},
            {"precision", report.precision},
            {"measured", json_of(report.measured)},
            {"datasheet", report.datasheet ? json_of(*report.datasheet) : Json(nullptr)},
            {"results", Json::array()}};
  for (const Result& r : report.results)
    j["results"].push_back(json_of(r, report));
  return j.dump(1) + "\n";
}

Report from_json(const std::string& json, const std::string& path) {
  try {
    const Json j = Json::parse(json);
    if (j.at("format") != "hearth-bench 1") fail_data(path, " has another format than hearth-bench 1");
    Report report{j.at("device"), j.at("precision"), ceilings_of(j.at("measured")), {}, {}};
    if (!j.at("datasheet").is_null()) report.datasheet = ceilings_of(j.at("datasheet"));
    for (const Json& r : j.at("results"))
      report.results.push_back(result_of(r));
    return report;
  } catch (const nlohmann::json::exception& error) {
    fail_data(path, " is not a file that hearth-bench --json wrote: ", error.what());
  }
}

// ---- comparison

namespace {

const Result* find(const Report& report, const std::string& key) {
  for (const Result& r : report.results)
    if (r.key() == key) return &r;
  return nullptr;
}

Change change_of(const Result& before, const Result& after) {
  if (before.error.empty() != after.error.empty())
    return {after.key(), after.error.empty() ? Verdict::now_right : Verdict::now_wrong};
  if (!after.error.empty()) return {after.key(), Verdict::same};
  const double difference = after.timing.median - before.timing.median;
  const double spread = std::max(before.timing.spread(), after.timing.spread());
  const Verdict verdict = std::abs(difference) <= spread ? Verdict::same
                          : difference < 0               ? Verdict::faster
                                                         : Verdict::slower;
  return {after.key(), verdict, before.timing.median / after.timing.median};
}

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::same:
      return "same";
    case Verdict::faster:
      return "faster";
    case Verdict::slower:
      return "slower";
    case Verdict::now_wrong:
      return "now wrong";
    case Verdict::now_right:
      return "now right";
    case Verdict::only_old:
      return "only old";
    case Verdict::only_new:
      return "only new";
  }
  return "";
}

}  // namespace

std::vector<Change> compare(const Report& before, const Report& after) {
  std::vector<Change> changes;
  for (const Result& r : after.results) {
    const Result* old = find(before, r.key());
    changes.push_back(old ? change_of(*old, r) : Change{r.key(), Verdict::only_new});
  }
  for (const Result& r : before.results)
    if (!find(after, r.key())) changes.push_back({r.key(), Verdict::only_old});
  return changes;
}

std::string comparison_text(const Report& before, const Report& after) {
  std::string lines;
  if (before.device != after.device || before.precision != after.precision)
    lines += text("different devices or types: ", before.device, " ", before.precision, " and ", after.device,
                  " ", after.precision, "\n");
  int counts[7] = {};
  for (const Change& change : compare(before, after)) {
    ++counts[static_cast<int>(change.verdict)];
    const bool timed = change.verdict <= Verdict::slower;
    lines += format("%-10s %-8s %s\n", name_of(change.verdict),
                    timed ? format("%.3fx", change.ratio).c_str() : "", change.key.c_str());
  }
  return lines + text(counts[static_cast<int>(Verdict::same)], " same, ",
                      counts[static_cast<int>(Verdict::faster)], " faster, ",
                      counts[static_cast<int>(Verdict::slower)], " slower (ratio = old time / new time)\n");
}

}  // namespace hearth::bench
