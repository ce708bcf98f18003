// Planted bugs: small kernels, each right without its bug.  planted_bugs_test.cpp runs them.
#pragma once

#include <string>
#include <vector>

namespace hearth::testing {

// Which runs must catch a bug.
enum class Catch {
  plain,         // a plain run under some schedule: by a wrong result or a report
  check,         // the race detector
  instrumented,  // the race detector in the check build, which sees raw global accesses
};

struct PlantedBug {
  std::string name;
  Catch caught_by;
  // Runs the kernel; false: the result is wrong.  Throws emulator::Failure with the emulator's report.
  bool (*run)(bool bug);
};

std::vector<PlantedBug> basic_bugs();    // threads, barriers, memory
std::vector<PlantedBug> copying_bugs();  // cp.async, ldmatrix
std::vector<PlantedBug> hopper_bugs();   // mbarrier, TMA, wgmma

}  // namespace hearth::testing
