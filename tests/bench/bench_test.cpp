// The benchmark's logic: statistics, comparison, FLOP counts, and that no wrong kernel gets a number.
#include <gtest/gtest.h>
#include <cmath>
#include <set>

#include "base/files.h"
#include "bench/bench.h"
#include "bench/check.h"
#include "bench/roofline.h"
#include "device/reference/reference_ops.h"
#include "support/temp_dir.h"

namespace hearth::bench {
namespace {

const std::string tiny = "batch=2,context=20,channels=32,heads=2,layers=2,vocab=100";
const Effort least{2, 1e-9, 0, 2};

Options tiny_options() {
  Options options;
  options.shape = tiny;
  options.peak = 16;
  options.effort = least;
  return options;
}

// ---- statistics

TEST(BenchStatistics, QuantilesAreLinearBetweenNeighboursInAnyOrder) {
  EXPECT_DOUBLE_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.9), 7);
  const Timing t = summarise({10, 0, 9, 1, 8, 2, 7, 3, 6, 4, 5}, 3);
  EXPECT_DOUBLE_EQ(t.median, 5);
  EXPECT_DOUBLE_EQ(t.p10, 1);
  EXPECT_DOUBLE_EQ(t.p90, 9);
  EXPECT_EQ(t.samples, 11);
  EXPECT_EQ(t.calls_per_sample, 3);
}

TEST(BenchStatistics, MeasuringGoesRoundManySetsAndCountsItsSamples) {
  const auto device = make_reference_device();
  Case c{.name = "probe", .shape = "8"};
  c.input("x", DType::f32, {8});
  std::set<void*> sets;
  int64_t runs = 0, prepared = 0;
  c.prepare = [&](Ops&, const Tensors&) { ++prepared; };
  c.run = [&](Ops&, const Tensors& t) {
    sets.insert(t[0].data);
    ++runs;
  };
  const Timing t =
      measure(*device, c, {.samples = 40, .seconds_per_sample = 1e-12, .warm_up_seconds = 0, .most_sets = 5});
  EXPECT_EQ(t.samples, 40);
  EXPECT_EQ(t.calls_per_sample, 1);
  EXPECT_EQ(runs, 42);  // two to warm up
  EXPECT_EQ(prepared, static_cast<int64_t>(sets.size()));
  EXPECT_EQ(sets.size(), device->cache_bytes() ? 5u : 1u);
  EXPECT_LE(t.p10, t.median);
  EXPECT_LE(t.median, t.p90);
}

// ---- comparison and JSON

Report report_of(const std::string& name, double median, double spread) {
  Report r{"a device", "bf16", {1e12, 1e11}, Ceilings{2e12, 2e11}, {}};
  Result result{.name = name, .shape = "1 x 2", .engine = "native"};
  result.timing = {median, median - spread / 2, median + spread / 2, 30, 4};
  result.flops = 3e6;
  result.bytes = 5e5;
  r.results.push_back(result);
  return r;
}

Change only_change(const Report& before, const Report& after) {
  const auto changes = compare(before, after);
  EXPECT_EQ(changes.size(), 1u);
  return changes.at(0);
}

TEST(BenchComparison, ADifferenceBelowTheSpreadOfEitherRunIsNone) {
  const Report base = report_of("gemm", 100e-6, 4e-6);
  EXPECT_EQ(only_change(base, report_of("gemm", 103e-6, 1e-6)).verdict, Verdict::same);  // spread of the old
  EXPECT_EQ(only_change(report_of("gemm", 103e-6, 1e-6), base).verdict, Verdict::same);  // of the new
  EXPECT_EQ(only_change(base, report_of("gemm", 97e-6, 1e-6)).verdict, Verdict::same);
  EXPECT_EQ(only_change(base, report_of("gemm", 110e-6, 1e-6)).verdict, Verdict::slower);
  const Change faster = only_change(base, report_of("gemm", 50e-6, 1e-6));
  EXPECT_EQ(faster.verdict, Verdict::faster);
  EXPECT_DOUBLE_EQ(faster.ratio, 2);
}

TEST(BenchComparison, CasesOfOneRunAndWrongResultsAreNamed) {
  const Report before = report_of("old", 1e-6, 0);
  Report after = report_of("new", 1e-6, 0);
  const auto changes = compare(before, after);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].verdict, Verdict::only_new);
  EXPECT_EQ(changes[1].verdict, Verdict::only_old);

  after = before;
  after.results[0].error = "y[3] is 1, expected 2";
  EXPECT_EQ(only_change(before, after).verdict, Verdict::now_wrong);
  EXPECT_EQ(only_change(after, before).verdict, Verdict::now_right);
  after = before;
  after.results[0].engine = "cublaslt";
  EXPECT_EQ(compare(before, after).size(), 2u) << "engines are different cases";
  after.device = "another";
  EXPECT_NE(comparison_text(before, after).find("different devices"), std::string::npos);
}

TEST(BenchJson, ComesBackAsItWas) {
  Report report = report_of("gemm", 100e-6, 4e-6);
  report.results.push_back({.name = "bad", .shape = "3", .engine = "", .error = "x[0] is nan, expected 1"});
  const Report back = from_json(to_json(report), "r.json");
  EXPECT_EQ(to_json(back), to_json(report));
  EXPECT_EQ(back.results[1].error, "x[0] is nan, expected 1");
  EXPECT_DOUBLE_EQ(back.results[0].timing.median, 100e-6);
  EXPECT_FALSE(back.all_correct());
  // 3e6 FLOP at 1e12 and 5e5 bytes at 1e11 allow 3 and 5 us.
  EXPECT_DOUBLE_EQ(back.results[0].share_of(report.measured), 0.05);
  EXPECT_EQ(to_json(report).find("median_seconds"), to_json(report).rfind("median_seconds"))
      << "no number for a wrong one";

  for (const char* broken : {"", "{", "[]", "{\"format\":\"hearth-bench 1\"}", "{\"format\":\"x\"}"}) {
    try {
      from_json(broken, "r.json");
      ADD_FAILURE() << broken;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      EXPECT_EQ(std::string(error.what()).find("r.json"), 0u);
    }
  }
}

// ---- counts

const Case& find(const std::vector<Case>& cases, const std::string& name) {
  for (const Case& c : cases)
    if (c.name == name) return c;
  ADD_FAILURE() << "no case " << name;
  return cases.front();
}

TEST(BenchCounts, FlopsOfAStepAreThoseOfTheModel) {
  for (const char* name : {"124M", "1558M"}) {
    const StepShape s = step_shape(name, Precision::bf16);
    const auto L = static_cast<double>(s.model.layers), C = static_cast<double>(s.model.channels);
    const double V = 50304, T = 1024, N = T * static_cast<double>(s.batch);
    double products = 0, attention = 0;
    for (const Case& c : all_cases(s))
      (c.product ? products : attention) += c.times * c.flops;
    EXPECT_NEAR(products / (6 * N * (12 * L * C * C + V * C)), 1, 1e-12) << name;
    // Half of T^2 pairs, 2 + 5 products of 2 D FLOP for each.
    EXPECT_NEAR(attention / (7 * N * T * L * C), 1, 1e-12) << name;
    EXPECT_EQ(s.parameters(), std::string(name) == "124M" ? 124'475'904 : 1'557'686'400);
  }
}

TEST(BenchCounts, BytesCountEachOperandOnceInEachDirection) {
  const StepShape s = step_shape("124M", Precision::bf16);
  const std::vector<Case> cases = all_cases(s);
  const double N = 65536, C = 768, F = 3072, V = 50304;
  EXPECT_EQ(find(cases, "mlp fc + gelu forward").bytes(), 2 * (N * C + F * C + F + 2 * N * F));
  EXPECT_EQ(find(cases, "mlp proj input gradient").bytes(), 2 * (N * C + F * C + 2 * N * F));
  EXPECT_EQ(find(cases, "mlp proj weight gradient").bytes(), 2 * (N * C + N * F) + 8 * F * C);
  EXPECT_EQ(find(cases, "residual_norm forward").bytes(), 8 * N * C + 6 * C + 8 * N);
  EXPECT_EQ(find(cases, "attention forward").bytes(), 8 * N * C + 4 * N * 12);
  EXPECT_EQ(find(cases, "attention backward").bytes(), 16 * N * C + 4 * N * 12);
  EXPECT_EQ(find(cases, "embed_tokens backward").bytes(), 4 * N + 2 * N * C + 8 * V * C);
  EXPECT_EQ(find(cases, "adamw").bytes(), 34 * 124'475'904.0);
  const Case& finish = find(cases, "cross_entropy finish");
  EXPECT_NEAR(finish.times * finish.bytes() / (4 * N * V), 1, 1e-3);
}

TEST(BenchCounts, TheReadmeHasTheTableThatTheProgramPrints) {
  const std::string readme = read_file("kernels/README.md");
  const std::string begin = "<!-- hearth-bench --roofline -->\n", end = "<!-- end -->";
  const size_t from = readme.find(begin), to = readme.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  EXPECT_EQ(readme.substr(from + begin.size(), to - from - begin.size()), roofline_text())
      << "replace the tables by the output of hearth-bench --roofline";
}

// ---- correctness comes first

// A host device that hands out wrong results: the last element of copy number `victim` is off by the rms.
class Tampering : public Device {
 public:
  std::string kind() const override { return "tampering"; }
  std::string description() const override { return "tampering"; }
  Ops& ops() override { return device_->ops(); }
  bool host_memory() const override { return true; }
  std::optional<std::string> unsupported(Precision) const override { return std::nullopt; }
  void* allocate(size_t bytes) override { return device_->allocate(bytes); }
  void release(void* address, size_t bytes) noexcept override { device_->release(address, bytes); }
  void copy_in(const Tensor& to, const void* host) override { device_->copy_in(to, host); }
  void copy_out(void* host, const Tensor& from) override {
    device_->copy_out(host, from);
    if (copies_++ != victim_) return;
    double norm2 = 0;
    for (int64_t i = 0; i < from.elements(); ++i)
      norm2 += load(host, from.dtype, i) * load(host, from.dtype, i);
    const int64_t last = from.elements() - 1;
    const double rms = std::sqrt(norm2 / static_cast<double>(from.elements()));
    store(host, from.dtype, last, load(host, from.dtype, last) + (rms > 0 ? rms : 1));
  }
  void attack(int copy) {
    victim_ = copy;
    copies_ = 0;
  }
  int copies() const { return copies_; }

 private:
  std::unique_ptr<Device> device_ = make_reference_device();
  int copies_ = 0, victim_ = -1;
};

TEST(BenchCheck, EveryResultOfEveryCaseIsCompared) {
  Tampering device;
  const StepShape s = shape_of(tiny_options(), Precision::bf16, false);
  for (const Case& c : all_cases(s)) {
    device.attack(-1);
    ASSERT_EQ(check(device, c), "") << c.id();
    int results = 0;
    for (const Operand& o : c.operands)
      results += o.role == Role::output || o.role == Role::inout;
    ASSERT_GT(results, 0) << c.id();
    ASSERT_EQ(device.copies(), 2 * results) << c.id() << ": the first and the last part of each";
    for (int victim = 0; victim < 2 * results; ++victim) {
      device.attack(victim);
      EXPECT_NE(check(device, c), "") << c.id() << ", result " << victim;
    }
  }
}

TEST(BenchCheck, AnOperationThatDoesNothingIsWrong) {
  const auto device = make_reference_device();
  for (Case c : all_cases(shape_of(tiny_options(), Precision::bf16, false))) {
    c.run = [&, run = c.run](Ops& ops, const Tensors& t) {
      if (&ops != &device->ops()) run(ops, t);
    };
    EXPECT_NE(check(*device, c), "") << c.id();
  }
}

TEST(BenchCheck, TheCpuIsRightInBothTypes) {
  const auto device = make_cpu_device(2);
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const Case& c : all_cases(shape_of(tiny_options(), precision, false)))
      EXPECT_EQ(check(*device, c), "") << c.id() << " " << name_of(precision);
}

// Normalises with a variance that is a little too large.
class WrongNorm : public reference::ReferenceOps {
 public:
  void residual_norm_forward(const ResidualNorm& p) override {
    ResidualNorm wrong = p;
    wrong.eps = 0.1;
    ReferenceOps::residual_norm_forward(wrong);
  }
};
class WrongDevice : public Tampering {
 public:
  Ops& ops() override { return ops_; }

 private:
  WrongNorm ops_;
};

TEST(BenchCheck, AWrongKernelIsReportedAndHasNoNumber) {
  std::vector<Engine> engines;
  engines.push_back({"", std::make_unique<WrongDevice>()});
  Options options = tiny_options();
  options.filter = "residual_norm";
  std::string table;
  const Report report = run(options, engines, [&](const std::string& line) { table += line + "\n"; });
  ASSERT_EQ(report.results.size(), 2u);
  EXPECT_FALSE(report.all_correct());
  EXPECT_NE(table.find("WRONG: normed"), std::string::npos) << table;
  EXPECT_EQ(report.results[0].timing.samples, 0);
  EXPECT_EQ(report.results[1].error, "");
  EXPECT_GT(report.results[1].timing.median, 0);
}

// Beside the target's -1 the other gradients, about 1/V each, hardly count in a norm; they must be right too.
// (The loss is scaled by 1/1000.)
class WrongSoftmax : public reference::ReferenceOps {
 public:
  void cross_entropy_finish(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                            const Tensor& stats, const Tensor& losses, const Tensor& d) override {
    ReferenceOps::cross_entropy_finish(logits, targets, shard, stats, losses, d);
    for (int64_t i = 0; i < d.elements(); ++i)
      if (const double value = load(d.data, d.dtype, i); value > 0 && value < 5e-8)
        store(d.data, d.dtype, i, 1.5 * value);
  }
};

TEST(BenchCheck, SmallNumbersBesideALargeOneCount) {
  class Device : public Tampering {
   public:
    Ops& ops() override { return ops_; }
    WrongSoftmax ops_;
  } device;
  Options options;
  options.shape = "batch=1,context=4,channels=32,heads=2,layers=1,vocab=50257";
  const std::vector<Case> cases = all_cases(shape_of(options, Precision::bf16, false));
  const std::string wrong = check(device, find(cases, "cross_entropy finish"));
  EXPECT_EQ(wrong.find("d_logits is typically off by"), 0u) << wrong;
}

// ---- the emulated GPU

// All cases through the whole program's path, products on two engines side by side.
TEST(BenchEmulated, AllCasesOfAGpuRunAndAreRight) {
  Options options = tiny_options();
  options.device = "cuda";
  options.gemm = "native";
  std::string table;
  const auto line = [&](const std::string& text) { table += text + "\n"; };
  std::vector<Engine> engines = make_engines(options, line);
  ASSERT_EQ(engines.size(), 1u);
  ASSERT_EQ(engines[0].name, "native");
  engines.push_back({"cublaslt", make_cuda_device({})});
  const Report report = run(options, engines, line);
  EXPECT_TRUE(report.all_correct()) << table;
  const auto cases = all_cases(shape_of(options, Precision::bf16, false));
  EXPECT_EQ(report.results.size(), cases.size() + 15) << "15 products on a second engine";
  for (const Result& r : report.results) {
    EXPECT_GT(r.timing.median, 0) << r.key();
    EXPECT_EQ(r.timing.samples, 2) << r.key();
  }
  EXPECT_EQ(report.precision, "bf16");
  EXPECT_FALSE(report.datasheet);
  EXPECT_EQ(compare(report, from_json(to_json(report), "r")).size(), report.results.size());
}

TEST(BenchEmulated, TheStopwatchMeasuresTheQueuedWork) {
  const auto device = make_cuda_device({});
  const int64_t n = 1 << 20;
  const Buffer from(*device, n), to(*device, n);
  const auto small = device->stopwatch(), large = device->stopwatch();
  const auto copy = [&](Stopwatch& watch, int64_t bytes, int times) {
    watch.start();
    for (int i = 0; i < times; ++i)
      device->ops().copy(Tensor(from.data(), DType::u8, {bytes}), Tensor(to.data(), DType::u8, {bytes}));
    watch.stop();
  };
  copy(*small, 16, 1);
  copy(*large, n, 100);
  EXPECT_GT(large->seconds(), small->seconds());
  EXPECT_GT(device->cache_bytes(), 0u);
}

// ---- the command line

std::string usage_error(const std::vector<std::string>& arguments) {
  try {
    const Options options = parse(arguments);
    shape_of(options, Precision::bf16, false);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(BenchOptions, SayWhatIsWrong) {
  EXPECT_EQ(usage_error({"--devise=cpu"}), "unknown option \"--devise\"; did you mean --device?");
  EXPECT_EQ(usage_error({"--device", "tpu"}), "--device \"tpu\", expected auto, cpu, cuda or reference");
  EXPECT_EQ(usage_error({"--compare", "one.json"}), "--compare takes OLD NEW; see hearth-bench --help");
  EXPECT_EQ(usage_error({"--quick=yes"}), "--quick takes no value; see hearth-bench --help");
  EXPECT_EQ(usage_error({"--shape", "depth=3"}),
            "--shape \"depth\", expected batch, context, channels, heads, layers or vocab");
  EXPECT_EQ(usage_error({"--shape", "batch=x"}),
            "--shape batch \"x\", expected a whole number from 1 to 16777216");
  EXPECT_NE(usage_error({"--shape", "heads=7"}), "");
  const Options good = parse({"--model=1558M", "--shape", "batch=3", "--precision", "bf16"});
  const StepShape s = shape_of(good, Precision::bf16, true);
  EXPECT_EQ(s.batch, 3);
  EXPECT_EQ(s.model.layers, 48);
  EXPECT_EQ(shape_of(parse({}), Precision::fp32, true).batch, 1);
  EXPECT_EQ(shape_of(parse({}), Precision::bf16, false).batch, 64);
}

TEST(BenchProgram, WritesAFileAndComparesIt) {
  const hearth::TempDir dir;
  const std::string file = (dir.path() / "a.json").string();
  ::testing::internal::CaptureStdout();
  const int measured = run_bench(
      {"--device=cpu", "--quick", "--shape", tiny, "--peak=16", "--filter=^copy|norm_apply", "--json", file});
  const int compared = run_bench({"--compare", file, file});
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(measured, 0) << out;
  EXPECT_EQ(compared, 0) << out;
  EXPECT_NE(out.find("2 same, 0 faster, 0 slower"), std::string::npos) << out;
  EXPECT_NE(out.find("GB/s"), std::string::npos) << out;

  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_bench({"--filter=nothing like this"}), 2);
  EXPECT_EQ(run_bench({"--filter=("}), 2);
  EXPECT_EQ(run_bench({"--compare", file, "no such file"}), 65);
  EXPECT_EQ(run_bench({"--device=cuda", "--precision=fp32"}), 2);
  const std::string errors = ::testing::internal::GetCapturedStderr();
  ::testing::internal::GetCapturedStdout();
  EXPECT_NE(errors.find("--filter matches no case"), std::string::npos) << errors;
}

}  // namespace
}  // namespace hearth::bench
