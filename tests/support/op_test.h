// The fixture of the operation tests: every case runs once for each implementation and type.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/op_bench.h"

namespace hearth::testing {

class OpTest : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    for (const auto& make : GetParam().devices)
      devices_.push_back(make());
    devices_.push_back(make_reference_device());
    const Precision precision = GetParam().compute == DType::bf16 ? Precision::bf16 : Precision::fp32;
    if (const auto reason = devices_[0]->unsupported(precision)) GTEST_SKIP() << *reason;
  }

  // A bench for one case, described by `parts`.
  template <class... Parts>
  Bench bench(const Parts&... parts) {
    return Bench(GetParam(), devices_, text(parts...));
  }

  // The width itself, or the next one that the implementation can do.
  static int64_t width(int64_t n) {
    const int64_t granule = GetParam().granule;
    return (n + granule - 1) / granule * granule;
  }

  // For cases that need no comparison.
  Device& tested() { return *devices_[0]; }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
};

inline std::string setup_name(const ::testing::TestParamInfo<Setup>& info) {
  return info.param.name;
}

}  // namespace hearth::testing
