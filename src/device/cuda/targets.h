// For which GPUs this executable's kernels were compiled.
#pragma once

#include <string_view>

namespace hearth::cuda {

// "sm_80 sm_90a"; "the SIMT emulator" where that runs the kernels.
std::string_view targets();

// Whether a GPU of compute capability major.minor runs code for one of these targets: code for sm_80 runs
// on 8.0 and on every later 8.x; code with an "a" only where both numbers are equal.  Text that names no sm_
// is for all.
inline bool runs_on(std::string_view targets, int major, int minor) {
  bool any = false;
  for (size_t at = targets.find("sm_"); at != std::string_view::npos; at = targets.find("sm_", at)) {
    any = true;
    at += 3;
    int number = 0;
    while (at < targets.size() && targets[at] >= '0' && targets[at] <= '9')
      number = 10 * number + (targets[at++] - '0');
    const bool exact = at < targets.size() && targets[at] == 'a';
    if (number / 10 == major && (exact ? number % 10 == minor : number % 10 <= minor)) return true;
  }
  return !any;
}

}  // namespace hearth::cuda
