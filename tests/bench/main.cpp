// hearth-bench: microbenchmarks of every operation, on a GPU and on a CPU.
#include <string>
#include <vector>

#include "bench/bench.h"

int main(int argc, char** argv) {
  return hearth::bench::run_bench(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
