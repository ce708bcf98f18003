// scripts/gpu_check.sh where the emulator stands in for the GPU, and with programs that fail.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

using testing::Outcome;
using Words = std::vector<std::string>;
using Json = nlohmann::json;

// A hearth that writes three steps of metrics: on the GPU losses that are OFF too large.
constexpr const char* fake_hearth = R"(#!/bin/bash
[[ $1 == --version ]] && { echo "hearth 9"; exit; }
for word; do
  [[ $word == --run.dir=* ]] && run=${word#*=}
  [[ $word == --device.kind=cuda ]] && off=OFF
done
mkdir -p "$run"
for step in 1 2 3; do
  echo "{\"event\":\"step\",\"step\":$step,\"loss\":$((step + 3)).${off:-0}5,\"tokens_per_second\":${step}000.5,\"mfu\":0.${step}5}"
done >"$run/metrics.jsonl"
)";

fs::path near_tests(const char* name) {
  const char* emulated = std::getenv("HEARTH_EMULATED");
  return fs::absolute(emulated ? emulated : "build/hearth-emulated").parent_path() / name;
}

class GpuCheck : public ::testing::Test {
 protected:
  std::string script(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
    fs::permissions(dir_ / name, fs::perms::owner_all);
    return (dir_ / name).string();
  }
  std::string hearth_with_offset(const std::string& digit) {
    std::string text = fake_hearth;
    return script("hearth", text.replace(text.find("OFF"), 3, digit));
  }
  Outcome run(const Words& environment, const Words& arguments) {
    Words words{"env"};
    words.insert(words.end(), environment.begin(), environment.end());
    words.insert(words.end(), {"scripts/gpu_check.sh", "--quick", "--out", (dir_ / "out").string()});
    words.insert(words.end(), arguments.begin(), arguments.end());
    return testing::run_program(words);
  }
  Json json() const { return Json::parse(read_file(dir_ / "out" / "gpu_check.json")); }
  static std::string status(const Json& all, const std::string& section) {
    for (const Json& one : all.at("sections"))
      if (one.at("name") == section) return one.at("status");
    return "absent";
  }

  TempDir dir_;
  const std::string emulator_ = near_tests("hearth-conformance-emulated").string();
};

TEST_F(GpuCheck, PassesWithTheEmulatorAsTheGpu) {
  const Outcome o = run({"HEARTH=" + near_tests("hearth-emulated").string(),
                         "HEARTH_GPU_TESTS=" + near_tests("hearth-kernel-tests").string(),
                         "HEARTH_CONFORMANCE=" + emulator_, "HEARTH_CONFORMANCE_EMULATED=" + emulator_},
                        {"--limit", "200", "conformance", "kernels", "losses", "native"});
  ASSERT_EQ(o.code, 0) << o.output;
  const Json all = json();
  for (const char* section : {"conformance", "kernels", "losses", "native"})
    EXPECT_EQ(status(all, section), "passed") << o.output;
  EXPECT_EQ(status(all, "bench"), "absent");
  EXPECT_GT(all.at("sections")[0].at("records"), 40);
  EXPECT_LT(all.at("sections")[2].at("worst_relative_difference"), 0.005);
  EXPECT_GT(all.at("sections")[3].at("tokens_per_second"), 0);
  EXPECT_NE(o.output.find("0 failed"), std::string::npos) << o.output;
}

// One word of one instruction differs; a test fails.  What comes after is run all the same.
TEST_F(GpuCheck, FailuresAreNamedAndStopNothing) {
  const std::string wrong = script("conformance", "#!/bin/bash\n" + emulator_ +
                                                      " \"$@\" && sed -i '/^mma_m16n8k16: 00008/s/: ./: f/2' "
                                                      "\"$1\"\n");
  const std::string tests =
      script("tests",
             "#!/bin/bash\necho '[       OK ] A.B (1 ms)'\necho '[  FAILED  ] Gemm.Small/gpu, where "
             "GetParam() = 1 (3 ms)'\nexit 1\n");
  const Outcome o = run({"HEARTH=" + hearth_with_offset("0"), "HEARTH_GPU_TESTS=" + tests,
                         "HEARTH_CONFORMANCE=" + wrong, "HEARTH_CONFORMANCE_EMULATED=" + emulator_},
                        {"conformance", "kernels", "losses", "native", "pytorch"});
  EXPECT_EQ(o.code, 1) << o.output;
  const Json all = json();
  EXPECT_EQ(all.at("failures"), 2);
  EXPECT_EQ(all.at("version"), "hearth 9");
  EXPECT_EQ(all.at("sections")[0].at("result"), "not as the emulator has it: mma_m16n8k16");
  EXPECT_EQ(all.at("sections")[1].at("result"), "failed: Gemm.Small/gpu");
  EXPECT_EQ(status(all, "losses"), "passed") << o.output;
  EXPECT_EQ(all.at("sections")[3].at("tokens_per_second"), 2000.5);
  EXPECT_EQ(all.at("sections")[3].at("mfu"), 0.25);
  EXPECT_NE(o.output.find("MFU 25.0%"), std::string::npos) << o.output;
  EXPECT_EQ(status(all, "pytorch"), "skipped");
}

TEST_F(GpuCheck, LossesThatDifferFail) {
  const Outcome o = run({"HEARTH=" + hearth_with_offset("1")}, {"losses"});
  EXPECT_EQ(o.code, 1) << o.output;
  EXPECT_NE(o.output.find("a loss differs by"), std::string::npos) << o.output;
}

TEST_F(GpuCheck, SectionsThatHangAreStopped) {
  const std::string hangs = script("hangs", "#!/bin/bash\nexec sleep 100\n");
  const Outcome o =
      run({"HEARTH_GPU_TESTS=" + hangs, "HEARTH=/nowhere"}, {"--limit", "1", "kernels", "native"});
  EXPECT_EQ(o.code, 1) << o.output;
  EXPECT_NE(o.output.find("not done after 1 s"), std::string::npos) << o.output;
  EXPECT_NE(o.output.find("there is no /nowhere"), std::string::npos) << o.output;
  EXPECT_EQ(json().at("failures"), 2);
  EXPECT_LT(json().at("sections")[0].at("seconds"), 15);
}

TEST_F(GpuCheck, WrongArgumentsAreRefused) {
  EXPECT_EQ(run({}, {"everything"}).code, 2);
  EXPECT_EQ(run({}, {"--limit", "soon"}).code, 2);
}

}  // namespace
}  // namespace hearth
