// Philox 4x32-10, the counter-based random generator behind initialisation, dropout and sampling
// (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A random number in Hearth is a pure function of what it is for: (seed, domain, stream) give the key and the
// global index of the element gives the counter.  No generator has state, so no layout, thread count, resume
// or recomputation can change a draw.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace hearth {

using PhiloxBlock = std::array<uint32_t, 4>;

struct PhiloxKey {
  uint32_t lo = 0;
  uint32_t hi = 0;
};

// One block of four 32-bit numbers for a 128-bit counter.  Matches the published test vectors.
inline PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key.lo, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key.hi, static_cast<uint32_t>(p0)};
    key.lo += 0x9E3779B9u;
    key.hi += 0xBB67AE85u;
  }
  return counter;
}

// What the numbers are for.  Values are part of the checkpoint contract: never renumber.
enum class RandomDomain : uint32_t { init = 1, dropout = 2, permutation = 3, sampling = 4 };

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection on 64 bits.
inline uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// The key for one stream of one domain: the tensor id for init, layer and site for dropout, the epoch for the
// data permutation.
inline PhiloxKey random_key(uint64_t seed, RandomDomain domain, uint64_t stream) {
  const uint64_t k = mix64(mix64(seed) ^ mix64((uint64_t{static_cast<uint32_t>(domain)} << 56) ^ stream));
  return {static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32)};
}

// The four numbers of block `block` (elements 4*block .. 4*block+3) of instance `instance` (a sample index
// for dropout, 0 for init).
inline PhiloxBlock random_block(PhiloxKey key, uint64_t block, uint64_t instance = 0) {
  return philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                 static_cast<uint32_t>(instance), static_cast<uint32_t>(instance >> 32)},
                key);
}

// Uniform in (0, 1): never 0, so that its logarithm is finite.
inline double uniform_open(uint32_t bits) {
  return (bits + 0.5) * (1.0 / 4294967296.0);
}

// Four standard normal numbers from a block (Box and Muller 1958).
inline std::array<double, 4> normal4(const PhiloxBlock& block) {
  constexpr double two_pi = 6.283185307179586476925286766559;
  std::array<double, 4> z;
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * std::log(uniform_open(block[2 * pair])));
    const double angle = two_pi * uniform_open(block[2 * pair + 1]);
    z[2 * pair] = radius * std::cos(angle);
    z[2 * pair + 1] = radius * std::sin(angle);
  }
  return z;
}

}  // namespace hearth
