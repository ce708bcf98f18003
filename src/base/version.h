// The version of this program: printed by --version, and compared between the ranks of a run.
#pragma once

namespace hearth {

inline constexpr const char* hearth_version = "0.1.0";

}  // namespace hearth
