// What SLURM tells a process, read without SLURM's tools (containers often lack them).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hearth {

// "node[01-03,7],x2" -> node01 node02 node03 node7 x2.  Several brackets in a name multiply, as in SLURM.
// Throws Error(usage) for what is not a node list.
std::vector<std::string> parse_node_list(std::string_view list);

}  // namespace hearth
