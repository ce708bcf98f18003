#include "bench/bench.h"

#include <cstdio>

#include "base/files.h"
#include "bench/cases.h"
#include "bench/check.h"
#include "bench/roofline.h"

namespace hearth::bench {

namespace {

using Print = std::function<void(const std::string&)>;

Precision precision_of(const Options& options, const Device& device) {
  const std::string name = options.precision.value_or(device.host_memory() ? "fp32" : "bf16");
  const Precision precision = name == "bf16" ? Precision::bf16 : Precision::fp32;
  if (const auto why = device.unsupported(precision)) fail_usage("--precision ", name, ": ", *why);
  return precision;
}

// Correctness first: a wrong result has no time.
Result measure_case(const Engine& engine, const Case& c, const Effort& effort) {
  Result result{.name = c.name, .shape = c.shape, .engine = c.product ? engine.name : ""};
  result.flops = c.flops;
  result.bytes = c.bytes();
  try {
    result.error = check(*engine.device, c);
    if (result.error.empty()) result.timing = measure(*engine.device, c, effort);
  } catch (const Error& error) {
    result.error = error.what();
  }
  return result;
}

// The ceiling is the best of the engines, in their faster samples.
Ceilings measure_ceilings(const std::vector<Engine>& engines, int64_t edge, Precision precision,
                          const Effort& effort) {
  Ceilings best;
  const auto faster = [&](double& ceiling, double work, const Result& r) {
    if (!r.error.empty()) fail_device(r.name, " cannot be measured: ", r.error);
    ceiling = std::max(ceiling, work / r.timing.p10);
  };
  for (const Engine& engine : engines) {
    const Case product = product_ceiling(edge, precision);
    faster(best.flops, product.flops, measure_case(engine, product, effort));
  }
  const Case copy = copy_ceiling(16 * edge * edge);
  faster(best.bandwidth, copy.bytes(), measure_case(engines.front(), copy, effort));
  return best;
}

std::optional<Ceilings> datasheet(const Device& device, Precision precision) {
  const auto flops = device.peak_flops(precision), bandwidth = device.peak_bandwidth();
  if (!flops || !bandwidth) return std::nullopt;
  return Ceilings{*flops, *bandwidth};
}

// On every engine that differs for this case, side by side.
void run_case(Report& report, const std::vector<Engine>& engines, const Case& c, const Effort& effort,
              const Print& line) {
  std::vector<Result> results;
  for (const Engine& engine : engines) {
    if (!results.empty() && !c.product) break;
    results.push_back(measure_case(engine, c, effort));
  }
  for (const Result& r : results) {
    const Result* other = r.engine == "native" && results.size() > 1 ? &results.back() : nullptr;
    line(table_line(report, r, other));
  }
  report.results.insert(report.results.end(), results.begin(), results.end());
}

std::vector<Case> chosen_cases(const Options& options, const StepShape& shape) {
  std::vector<Case> chosen;
  try {
    const std::regex filter(options.filter);
    for (Case& c : all_cases(shape))
      if (std::regex_search(c.id(), filter)) chosen.push_back(std::move(c));
  } catch (const std::regex_error& error) {
    fail_usage("--filter is not a regular expression: ", error.what());
  }
  if (chosen.empty()) fail_usage("--filter matches no case; hearth-bench --list prints them");
  return chosen;
}

}  // namespace

Report run(const Options& options, std::vector<Engine>& engines, const Print& line) {
  const Device& device = *engines.front().device;
  const bool host = device.host_memory();
  const Precision precision = precision_of(options, device);
  const std::vector<Case> cases = chosen_cases(options, shape_of(options, precision, host));
  Report report{device.description(), std::string(name_of(precision)), {}, datasheet(device, precision), {}};
  const int64_t edge = options.peak ? options.peak : host ? 1024 : 8192;
  report.measured = measure_ceilings(engines, edge, precision, options.effort);
  line(table_head(report));
  for (const Case& c : cases)
    run_case(report, engines, c, options.effort, line);
  return report;
}

std::vector<Engine> make_engines(const Options& options, const Print& line) {
  DeviceConfig config;
  config.kind = options.device;
  config.threads = options.threads;
  config.gemm = options.gemm == "cublaslt" ? "cublaslt" : "native";
  std::vector<Engine> engines;
  engines.push_back({"", make_device(config)});
  if (engines.front().device->kind() != "cuda") return engines;
  engines.front().name = config.gemm;
  if (options.gemm != "both") return engines;
  config.gemm = "cublaslt";
  try {
    Engine other{config.gemm, make_device(config)};
    // A device names any engine that is not its own; one that does not would be measured against itself.
    if (other.device->description() == engines.front().device->description())
      line("without cuBLASLt: this build knows no such engine");
    else
      engines.push_back(std::move(other));
  } catch (const Error& error) {
    line(text("without cuBLASLt: ", error.what()));
  }
  return engines;
}

namespace {

void print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int compare_files(const std::string& before, const std::string& after) {
  const Report old_report = from_json(read_file(before), before);
  const Report new_report = from_json(read_file(after), after);
  std::fputs(comparison_text(old_report, new_report).c_str(), stdout);
  return static_cast<int>(ExitCode::done);
}

int list_cases(const Options& options) {
  const bool host = options.device == "cpu" || (options.device == "auto" && cuda_unavailable());
  const Precision precision = options.precision == "fp32" ? Precision::fp32 : Precision::bf16;
  for (const Case& c : chosen_cases(options, shape_of(options, precision, host)))
    print(c.id());
  return static_cast<int>(ExitCode::done);
}

int measure_all(const Options& options) {
  std::vector<Engine> engines = make_engines(options, print);
  const Report report = run(options, engines, print);
  if (!options.json.empty()) write_file_atomically(options.json, to_json(report));
  if (report.all_correct()) return static_cast<int>(ExitCode::done);
  std::fputs("hearth-bench: some results are wrong; they have no numbers\n", stderr);
  return static_cast<int>(ExitCode::numerical);
}

}  // namespace

int run_bench(const std::vector<std::string>& arguments) {
  try {
    const Options options = parse(arguments);
    if (options.help) {
      std::fputs(help_text().c_str(), stdout);
      return static_cast<int>(ExitCode::done);
    }
    if (options.roofline) {
      std::fputs(roofline_text().c_str(), stdout);
      return static_cast<int>(ExitCode::done);
    }
    if (options.list) return list_cases(options);
    if (!options.compare.empty()) return compare_files(options.compare[0], options.compare[1]);
    return measure_all(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "hearth-bench: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace hearth::bench
