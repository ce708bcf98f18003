// How many cores this process may use: the affinity mask (taskset, SLURM) and the CPU quota (containers).
#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <thread>

#include "base/thread_pool.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

constexpr double unlimited = std::numeric_limits<double>::infinity();

// The quota set on one group's folder: cpu.max holds "QUOTA PERIOD" or "max PERIOD" (version 2);
// cpu.cfs_quota_us and cpu.cfs_period_us hold one number each, -1 for no quota (version 1).
double quota_of(const fs::path& group) {
  double quota = 0;
  double period = 0;
  if (std::ifstream(group / "cpu.max") >> quota >> period && quota > 0 && period > 0) return quota / period;
  if (std::ifstream(group / "cpu.cfs_quota_us") >> quota &&
      std::ifstream(group / "cpu.cfs_period_us") >> period && quota > 0 && period > 0)
    return quota / period;
  return unlimited;
}

// The tightest quota from `group` up to `root`: a parent limits its children.
double tightest_quota(const fs::path& root, const fs::path& group) {
  double limit = quota_of(root);
  fs::path folder = root;
  for (const fs::path& part : group.relative_path()) {
    folder /= part;
    limit = std::min(limit, quota_of(folder));
  }
  return limit;
}

bool lists_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

int cores_in_affinity_mask() {
  // A mask of 1024 cores is the C library's default; larger machines need a longer one.
  for (int cores = 1024; cores <= (1 << 20); cores *= 2) {
    cpu_set_t* mask = CPU_ALLOC(cores);
    const size_t size = CPU_ALLOC_SIZE(cores);
    const int status = sched_getaffinity(0, size, mask);
    const int error = errno;
    const int count = status == 0 ? CPU_COUNT_S(size, mask) : 0;
    CPU_FREE(mask);
    if (count > 0) return count;
    if (error != EINVAL) break;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

double cgroup_cpu_limit(std::string_view membership, const fs::path& root) {
  double limit = unlimited;
  std::istringstream lines{std::string(membership)};
  // Each line is "hierarchy:controllers:/group"; version 2 is "0::/group".
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      limit = std::min({limit, tightest_quota(root, group), tightest_quota(root / "unified", group)});
    } else if (lists_cpu(controllers)) {
      limit =
          std::min({limit, tightest_quota(root / controllers, group), tightest_quota(root / "cpu", group)});
    }
  }
  return limit;
}

int available_cores() {
  int cores = std::max(1, cores_in_affinity_mask());
  std::ostringstream membership;
  membership << std::ifstream("/proc/self/cgroup").rdbuf();
  const double limit = cgroup_cpu_limit(membership.str(), "/sys/fs/cgroup");
  // Rounded up: one and a half cores feed two threads better than one.
  if (limit < cores) cores = std::max(1, static_cast<int>(std::ceil(limit)));
  return cores;
}

}  // namespace hearth
