// Where the training part of a corpus ends; shared by reading text (corpus.cpp) and preparing it
// (prepare.cpp).
#pragma once

#include <cmath>
#include <cstdint>

namespace hearth {

// How many of `count` characters (or tokens) are for training: floor((1 - val_fraction) * count),
// as nanoGPT splits.
inline int64_t training_part(int64_t count, double val_fraction) {
  return static_cast<int64_t>(std::floor((1.0 - val_fraction) * static_cast<double>(count)));
}

}  // namespace hearth
