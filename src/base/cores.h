// The part of available_cores() that reads control groups, declared for its test.
#pragma once

#include <filesystem>
#include <string_view>

namespace hearth {

// The tightest CPU quota, in cores, of the control groups (version 1 or 2) that a process belongs to;
// infinity when there is none.  `membership` is the content of /proc/self/cgroup
// and `root` stands for /sys/fs/cgroup.
double cgroup_cpu_limit(std::string_view membership, const std::filesystem::path& root);

}  // namespace hearth
