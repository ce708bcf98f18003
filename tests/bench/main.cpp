// Microbenchmarks of the operations: build/hearth-bench [--benchmark_filter=...].
#include <benchmark/benchmark.h>

BENCHMARK_MAIN();
