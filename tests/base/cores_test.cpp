// The CPU quota of control groups, against made-up /sys/fs/cgroup trees.
#include "base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <fstream>

#include "base/thread_pool.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

void put(const std::filesystem::path& file, const std::string& content) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << content << "\n";
}

TEST(Cores, NoGroupsMeansNoLimit) {
  const TempDir dir;
  EXPECT_EQ(cgroup_cpu_limit("", dir.path()), INFINITY);
  EXPECT_EQ(cgroup_cpu_limit("0::/\n", dir.path()), INFINITY);
  EXPECT_EQ(cgroup_cpu_limit("nonsense\n:\n", dir.path()), INFINITY);
}

TEST(Cores, Version2TakesTheTightestOfAllParents) {
  const TempDir dir;
  put(dir / "job/cpu.max", "250000 100000");
  put(dir / "job/step/cpu.max", "max 100000");
  EXPECT_EQ(cgroup_cpu_limit("0::/job/step\n", dir.path()), 2.5);
  put(dir / "job/step/cpu.max", "50000 100000");
  EXPECT_EQ(cgroup_cpu_limit("0::/job/step\n", dir.path()), 0.5);
  EXPECT_EQ(cgroup_cpu_limit("0::/other\n", dir.path()), INFINITY);
}

TEST(Cores, Version2InsideAContainerFindsItsRoot) {
  const TempDir dir;
  put(dir / "cpu.max", "150000 100000");
  // The path is the host's; the container sees its own group as the root.
  EXPECT_EQ(cgroup_cpu_limit("0::/kubepods/pod1/abc\n", dir.path()), 1.5);
}

TEST(Cores, Version1) {
  const TempDir dir;
  put(dir / "cpu,cpuacct/docker/a/cpu.cfs_quota_us", "300000");
  put(dir / "cpu,cpuacct/docker/a/cpu.cfs_period_us", "100000");
  put(dir / "cpu,cpuacct/cpu.cfs_quota_us", "-1");
  put(dir / "cpu,cpuacct/cpu.cfs_period_us", "100000");
  std::filesystem::create_directory_symlink("cpu,cpuacct", dir / "cpu");
  const char* membership = "11:cpuset:/docker/a\n4:cpu,cpuacct:/docker/a\n1:name=systemd:/docker/a\n";
  EXPECT_EQ(cgroup_cpu_limit(membership, dir.path()), 3.0);
  EXPECT_EQ(cgroup_cpu_limit("11:cpuset:/docker/a\n", dir.path()), INFINITY);
}

TEST(Cores, AvailableCoresFollowTheAffinityMask) {
  const int all = available_cores();
  EXPECT_GE(all, 1);
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_LE(all, CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace
}  // namespace hearth
