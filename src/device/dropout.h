// The dropout mask, as device/ops.h defines it, for implementations that run on the host.
//
// The mask is a pure function of (seed, layer, site, sample, t*C + c): no layout, thread count or
// recomputation changes it, and nothing needs to be stored for the backward pass.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/philox.h"
#include "device/ops.h"

namespace hearth {

// The mask of one [N, C] operand.
class DropoutMask {
 public:
  // `step` is read only when the probability is above 0.
  DropoutMask(const Dropout& dropout, const StepParams* step, int64_t channels)
      : active_(dropout.probability > 0), channels_(channels) {
    if (!active_) return;
    check(step != nullptr, "dropout needs the step's scalars: call set_step_params first");
    check(dropout.probability < 1, "dropout of ", dropout.probability, " keeps nothing");
    check(dropout.time > 0, "dropout over samples of ", dropout.time, " rows");
    key_ = random_key(dropout.seed, RandomDomain::dropout, dropout.stream());
    threshold_ = dropout_threshold(dropout.probability);
    scale_ = 1 / (1 - dropout.probability);
    first_sample_ = step->first_sample + dropout.sample_offset;
    time_ = dropout.time;
    first_row_ = dropout.first_row;
  }

  // False: every factor is 1.
  bool active() const { return active_; }
  // What kept elements are multiplied by.
  double scale() const { return scale_; }

  // What element (row, channel) is multiplied by: 0, or scale().
  double factor(int64_t row, int64_t channel) const {
    if (!active_) return 1;
    const int64_t element = first_element(row) + channel;
    const PhiloxBlock bits = random_block(key_, element / 4, sample(row));
    return keep(bits[element % 4]) ? scale_ : 0;
  }

  // factor(row, 0) ... factor(row, C - 1): one Philox block for four elements.  The mask must be active.
  template <class Real>
  void factors(int64_t row, Real* out) const {
    const int64_t begin = first_element(row);
    const int64_t end = begin + channels_;
    const int64_t first_whole_block = (begin + 3) / 4;
    const int64_t last_whole_block = end / 4;
    for (int64_t e = begin; e < end && e < 4 * first_whole_block; ++e)
      out[e - begin] = static_cast<Real>(factor(row, e - begin));
    whole_blocks(first_whole_block, last_whole_block, sample(row), out + 4 * first_whole_block - begin);
    for (int64_t e = 4 * std::max(first_whole_block, last_whole_block); e < end; ++e)
      out[e - begin] = static_cast<Real>(factor(row, e - begin));
  }

 private:
  bool keep(uint32_t bits) const { return bits >= threshold_; }
  int64_t first_element(int64_t row) const { return (first_row_ + row) % time_ * channels_; }
  uint64_t sample(int64_t row) const {
    return static_cast<uint64_t>(first_sample_ + (first_row_ + row) / time_);
  }

  template <class Real>
  void whole_blocks(int64_t begin, int64_t end, uint64_t sample, Real* out) const {
    const PhiloxKey key = key_;
    const uint32_t threshold = threshold_;
    const Real scale = static_cast<Real>(scale_);
    for (int64_t block = begin; block < end; ++block, out += 4) {
      const PhiloxBlock bits = random_block(key, block, sample);
      for (int lane = 0; lane < 4; ++lane)
        out[lane] = bits[lane] >= threshold ? scale : Real{0};
    }
  }

  bool active_;
  int64_t channels_;
  PhiloxKey key_;
  uint32_t threshold_ = 0;
  double scale_ = 1;
  int64_t first_sample_ = 0;
  int64_t time_ = 1;
  int64_t first_row_ = 0;
};

}  // namespace hearth
