// Peaks are those of the very GPU, or unknown: a wrong one makes a wrong MFU.
#include "device/datasheet.h"

#include <gtest/gtest.h>

namespace hearth {
namespace {

void expect_sheet(const char* gpu, double teraflops, double gigabytes) {
  const auto sheet = datasheet_of(gpu);
  ASSERT_TRUE(sheet) << gpu;
  EXPECT_DOUBLE_EQ(sheet->flops, teraflops * 1e12) << gpu;
  EXPECT_DOUBLE_EQ(sheet->bandwidth, gigabytes * 1e9) << gpu;
}

TEST(Datasheet, KnowsGpusByTheirWholeNames) {
  expect_sheet("NVIDIA H200", 989.5, 4800);
  expect_sheet("NVIDIA H200 NVL", 835.5, 4800);
  expect_sheet("NVIDIA GH200 480GB", 989.5, 4000);
  expect_sheet("NVIDIA H100 80GB HBM3", 989.5, 3350);
  expect_sheet("NVIDIA H100 NVL", 835.5, 3900);
  expect_sheet("NVIDIA H100 PCIe", 756, 2000);
  expect_sheet("NVIDIA A100-SXM4-40GB", 312, 1555);
  expect_sheet("A100-SXM4-40GB", 312, 1555);
  expect_sheet("NVIDIA A100-SXM4-80GB", 312, 2039);
  expect_sheet("NVIDIA L40", 181, 864);
  expect_sheet("NVIDIA L40S", 362, 864);
  expect_sheet("NVIDIA L4", 121, 300);
  expect_sheet("NVIDIA A10", 125, 600);
  expect_sheet("NVIDIA A10G", 70, 600);
  expect_sheet("NVIDIA GeForce RTX 4090", 165.2, 1008);
}

TEST(Datasheet, KnowsNoRelativesOfThem) {
  for (const char* gpu :
       {"NVIDIA RTX A1000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA H100", "NVIDIA GH200 144G HBM3e", "NVIDIA ", "emulated GPU", ""})
    EXPECT_FALSE(datasheet_of(gpu)) << gpu;
}

}  // namespace
}  // namespace hearth
