#include "base/host_memory.h"

#include <gtest/gtest.h>

namespace hearth {
namespace {

TEST(HostMemory, IsReadFromTheKernelsTable) {
  EXPECT_EQ(available_memory("MemTotal:       24000 kB\nMemFree:          12 kB\nMemAvailable:    1000 kB\n"),
            1000u << 10);
  EXPECT_EQ(available_memory("MemTotal: 24000 kB\n"), 0u);
  EXPECT_EQ(available_memory("MemAvailable:"), 0u);
}

TEST(HostMemory, ThisMachineHasSome) {
  EXPECT_GT(available_memory(), uint64_t{16} << 20);
}

}  // namespace
}  // namespace hearth
