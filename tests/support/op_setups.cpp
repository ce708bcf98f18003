// The implementations under test.  On the cpu every case also runs with several thread counts.
#include "support/op_bench.h"

namespace hearth::testing {

static MakeDevice cpu(int threads) {
  return [threads] { return make_cpu_device(threads); };
}

std::vector<Setup> setups() {
  std::vector<Setup> all;
  for (const DType compute : {DType::f32, DType::bf16}) {
    const std::string type = compute == DType::f32 ? "_f32" : "_bf16";
    // The reference in f32 and bf16 storage is held to itself in f64: a test of its rounding points.
    all.push_back({"reference" + type, compute, {make_reference_device}, false, true});
    all.push_back({"cpu" + type, compute, {cpu(2)}});
    all.push_back({"cpu_threads" + type, compute, {cpu(1), cpu(2), cpu(3), cpu(5)}, true});
  }
  return all;
}

}  // namespace hearth::testing
