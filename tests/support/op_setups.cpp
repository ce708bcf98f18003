// The implementations under test.
#include "support/op_bench.h"

namespace hearth::testing {

std::vector<Setup> setups() {
  std::vector<Setup> all;
  for (const DType compute : {DType::f32, DType::bf16}) {
    const std::string type = compute == DType::f32 ? "_f32" : "_bf16";
    // The reference in f32 and bf16 storage is held to itself in f64: a test of its rounding points.
    all.push_back({"reference" + type, compute, {make_reference_device}, false, true});
  }
  return all;
}

}  // namespace hearth::testing
