// The executable: hands the command line to cli/.
#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.h"

int main(int argc, char** argv) {
  // Lines appear when they are finished, also in a file or a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  const std::string program = argc > 0 ? argv[0] : "hearth";
  return hearth::run_hearth(program, std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
