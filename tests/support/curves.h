// Comparing what two runs logged.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/train_run.h"

namespace hearth::testing {

// Steps and evaluations of both runs agree: numbers within `tolerance`, relative, everything else exactly.
inline void expect_same_curve(const fs::path& run, const fs::path& expected, double tolerance,
                              const std::string& what) {
  for (const char* event : {"step", "eval"}) {
    const auto got = metrics(run, event);
    const auto want = metrics(expected, event);
    ASSERT_EQ(got.size(), want.size()) << what << ", " << event;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].size(), want[i].size());
      for (const auto& [key, value] : want[i].items()) {
        if (key != "loss" && key != "grad_norm" && key != "val_loss") {
          EXPECT_EQ(got[i].at(key), value) << what << ", " << key;
          continue;
        }
        const double number = value.get<double>();
        EXPECT_NEAR(got[i].at(key).get<double>(), number, tolerance * std::abs(number))
            << what << ", " << event << " " << want[i].at("step") << ", " << key;
      }
    }
  }
}

}  // namespace hearth::testing
