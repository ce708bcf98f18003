// metrics.jsonl: the form of its lines, and the file that keeps whole lines only.
#include "train/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

TEST(JsonLine, FieldsInOrder) {
  EXPECT_EQ(JsonLine("step").add("step", 3).add("loss", 2.5).str(),
            R"({"event":"step","step":3,"loss":2.5})");
  EXPECT_EQ(JsonLine("start").add("name", "a\"b").add("ok", true).add("off", false).add_null("mfu").str(),
            R"({"event":"start","name":"a\"b","ok":true,"off":false,"mfu":null})");
  EXPECT_EQ(JsonLine("x").add("n", INT64_MIN).add("u", uint64_t{7}).add("s", std::string("t")).str(),
            R"({"event":"x","n":-9223372036854775808,"u":7,"s":"t"})");
}

TEST(JsonLine, NineSignificantDigits) {
  const auto digits = [](double value) { return JsonLine("x").add("v", value).str().substr(17); };
  EXPECT_EQ(digits(1.0 / 3), "0.333333333}");
  EXPECT_EQ(digits(123456789.5), "123456790}");
  EXPECT_EQ(digits(6e-4), "0.0006}");
  EXPECT_EQ(digits(1e-30), "1e-30}");
  EXPECT_EQ(digits(0), "0}");
}

TEST(JsonLine, WhatIsNotFiniteIsNullAndMarkedOnce) {
  EXPECT_EQ(JsonLine("step").add("loss", std::nan("")).add("grad_norm", HUGE_VAL).add("lr", 1.0).str(),
            R"({"event":"step","loss":null,"grad_norm":null,"lr":1,"finite":false})");
}

TEST(JsonLine, IsAlwaysJson) {
  const std::string line = JsonLine("x").add("bytes", std::string("\xff\0\n\x01", 4)).str();
  EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(StepLine, Documented) {
  StepMetrics m = {.step = 10,
                   .loss = 4.25,
                   .grad_norm = 1.5,
                   .lr = 6e-4,
                   .tokens = 5120,
                   .tokens_per_second = 1e5,
                   .mfu = std::nullopt,
                   .ms = 5.125};
  EXPECT_EQ(step_line(m),
            R"({"event":"step","step":10,"loss":4.25,"grad_norm":1.5,"lr":0.0006,"tokens":5120,)"
            R"("tokens_per_second":100000,"mfu":null,"ms":5.125})");
  m.mfu = 0.5;
  m.loss = std::nan("");
  m.skipped = true;
  EXPECT_EQ(step_line(m),
            R"({"event":"step","step":10,"loss":null,"grad_norm":1.5,"lr":0.0006,"tokens":5120,)"
            R"("tokens_per_second":100000,"mfu":0.5,"ms":5.125,"skipped":true,"finite":false})");
}

TEST(LineFile, AppendsAndKeepsWhatIsThere) {
  const TempDir dir;
  {
    LineFile file(dir / "f", UINT64_MAX);
    file.append("one");
    file.append("two");
    file.sync();
    EXPECT_EQ(file.bytes(), 8u);
    EXPECT_EQ(file.failure(), "");
  }
  LineFile file(dir / "f", UINT64_MAX);
  EXPECT_EQ(file.bytes(), 8u);
  file.append("three");
  EXPECT_EQ(read_file(dir / "f"), "one\ntwo\nthree\n");
}

TEST(LineFile, ResumeCutsToTheCheckpoint) {
  const TempDir dir;
  const auto after = [&](const std::string& content, uint64_t keep) {
    std::ofstream(dir / "f") << content;
    LineFile file(dir / "f", keep);
    const std::string kept = read_file(dir / "f");
    EXPECT_EQ(file.bytes(), kept.size());
    file.append("new");
    EXPECT_EQ(read_file(dir / "f"), kept + "new\n");
    return kept;
  };
  EXPECT_EQ(after("one\ntwo\nthree\n", 8), "one\ntwo\n");
  EXPECT_EQ(after("one\ntwo\n", 0), "");
  // A killed process leaves half a line; a lost file leaves fewer bytes than the checkpoint counts.
  EXPECT_EQ(after("one\ntwo\nthr", UINT64_MAX), "one\ntwo\n");
  EXPECT_EQ(after("one\ntwo\nthr", 8), "one\ntwo\n");
  EXPECT_EQ(after("one\n", 8), "one\n");
  // The count is of another file: no half lines all the same.
  EXPECT_EQ(after("one\ntwo\nthree\n", 9), "one\ntwo\n");
  EXPECT_EQ(after("nothing", 5), "");
  const std::string long_line(10000, 'x');
  EXPECT_EQ(after("a\n" + long_line, UINT64_MAX), "a\n");
  EXPECT_EQ(after(long_line + "\n", UINT64_MAX), long_line + "\n");
}

TEST(LineFile, AFullDiskCostsLinesOnly) {
  const TempDir dir;
  LineFile file(dir / "f", 0);
  file.append("12345678");
  void (*const handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit = {12, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  file.append("lost half way");
  file.append("lost too, and longer than the rest");
  const std::string failure = file.failure();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(failure.find((dir / "f").string()), std::string::npos) << failure;
  EXPECT_NE(failure.find("File too large"), std::string::npos) << failure;
  file.append("again");
  EXPECT_EQ(read_file(dir / "f"), "12345678\nagain\n");
  EXPECT_EQ(file.bytes(), 15u);
}

TEST(LineFile, CannotBeOpened) {
  const TempDir dir;
  EXPECT_THROW(LineFile(dir / "absent/f", 0), Error);
}

}  // namespace
}  // namespace hearth
