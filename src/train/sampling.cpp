#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/generate.h"

namespace hearth {

namespace {

int64_t most_likely(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// The candidates in order of falling probability (ties: the smaller id first), cut to `top_k`.
std::vector<int64_t> candidates(std::span<const float> logits, int64_t top_k) {
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto higher = [&](int64_t a, int64_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const size_t kept = top_k > 0 ? std::min<size_t>(static_cast<size_t>(top_k), ids.size()) : ids.size();
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(kept), ids.end(), higher);
  ids.resize(kept);
  return ids;
}

}  // namespace

int64_t pick_token(std::span<const float> logits, const SamplingConfig& sampling, double uniform) {
  if (sampling.temperature <= 0) return most_likely(logits);
  const std::vector<int64_t> ids = candidates(logits, sampling.top_k);
  const double top = logits[ids[0]];
  std::vector<double> weight(ids.size());
  for (size_t i = 0; i < ids.size(); ++i)
    weight[i] = std::exp((logits[ids[i]] - top) / sampling.temperature);
  double total = std::accumulate(weight.begin(), weight.end(), 0.0);

  // Nucleus: the shortest prefix that holds top_p of the probability (Holtzman et al. 2020).
  size_t kept = ids.size();
  if (sampling.top_p < 1.0) {
    double sum = 0;
    kept = 0;
    while (kept < ids.size() && (kept == 0 || sum < sampling.top_p * total))
      sum += weight[kept++];
    total = sum;
  }
  double rest = uniform * total;
  for (size_t i = 0; i + 1 < kept; ++i) {
    if (rest < weight[i]) return ids[i];
    rest -= weight[i];
  }
  return ids[kept - 1];
}

}  // namespace hearth
