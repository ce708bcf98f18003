// TensorBoard events, byte for byte against records that were checked with the reference implementation.
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "support/temp_dir.h"
#include "train/metrics.h"

namespace hearth {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    out += "0123456789abcdef"[static_cast<uint8_t>(c) >> 4];
    out += "0123456789abcdef"[static_cast<uint8_t>(c) & 15];
  }
  return out;
}

TEST(TensorBoard, FileVersionRecord) {
  EXPECT_EQ(hex(TensorBoardWriter::file_version_record(1700000000.0)),
            "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d");
}

TEST(TensorBoard, ScalarRecord) {
  EXPECT_EQ(
      hex(TensorBoardWriter::scalar_record("train/loss", 10, 4.25f, 1700000001.0)),
      "200000000000000029eda9500900004040fc54d941100a2a130a110a0a747261696e2f6c6f737315000088404f54edae");
}

TEST(TensorBoard, LongNumbersAndNames) {
  // Step 300 takes two bytes (ac 02); a tag of 200 bytes makes every length two bytes long (d0 = 0x80 | 80, 1
  // ...).
  const std::string record = TensorBoardWriter::scalar_record(std::string(200, 't'), 300, 1.f, 0.0);
  EXPECT_EQ(hex(record.substr(12, 9 + 3 + 3 + 3 + 3)),
            "090000000000000000"  // wall time
            "10ac02"              // step
            "2ad301"
            "0ad001"
            "0ac801");  // summary of 211 bytes, value of 208, tag of 200
  const std::string two_bytes = TensorBoardWriter::scalar_record("a", 128, 1.f, 0.0);
  EXPECT_EQ(hex(two_bytes.substr(12 + 9, 3)), "108001");
  // Step 0 is the default and is left out; the value is written even where it is 0.
  const std::string zero = TensorBoardWriter::scalar_record("a", 0, 0.f, 0.0);
  EXPECT_EQ(hex(zero.substr(12, 9 + 12)),
            "090000000000000000"
            "2a0a"
            "0a08"
            "0a0161"
            "1500000000");
}

TEST(TensorBoard, File) {
  const TempDir dir;
  {
    TensorBoardWriter first(dir.path());
    first.scalar("train/loss", 10, 4.25, 1700000001.0);
    TensorBoardWriter second(dir.path());
  }
  int files = 0;
  std::string rest;  // behind the first record
  for (const auto& entry : fs::directory_iterator(dir.path())) {
    ++files;
    const std::string name = entry.path().filename();
    const std::string prefix = "events.out.tfevents.";
    EXPECT_EQ(name.find(prefix), 0u) << name;
    EXPECT_EQ(name.find_first_not_of("0123456789", prefix.size()), prefix.size() + 10) << name;
    EXPECT_NE(name.find(text(".", ::getpid(), ".")), std::string::npos) << name;
    const std::string content = read_file(entry.path());
    EXPECT_EQ(hex(content.substr(0, 12)), "1800000000000000a37f4b22");
    rest += content.substr(40);
  }
  EXPECT_EQ(files, 2);
  EXPECT_EQ(rest, TensorBoardWriter::scalar_record("train/loss", 10, 4.25f, 1700000001.0));
}

}  // namespace
}  // namespace hearth
