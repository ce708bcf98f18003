// SHA-256 as in FIPS 180-4, section 6.2; the names are the standard's.
#include <array>
#include <bit>
#include <cstring>

#include "base/files.h"

namespace hearth {
namespace {

// The fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> K = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

constexpr size_t block_bytes = 64;

void compress(State& state, const std::byte* block) {
  std::array<uint32_t, 64> W;
  for (size_t t = 0; t < 16; ++t) {
    uint32_t word;
    std::memcpy(&word, block + 4 * t, 4);
    W[t] = __builtin_bswap32(word);
  }
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t sigma0 = std::rotr(W[t - 15], 7) ^ std::rotr(W[t - 15], 18) ^ (W[t - 15] >> 3);
    const uint32_t sigma1 = std::rotr(W[t - 2], 17) ^ std::rotr(W[t - 2], 19) ^ (W[t - 2] >> 10);
    W[t] = sigma1 + W[t - 7] + sigma0 + W[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t Sigma1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t T1 = h + Sigma1 + ((e & f) ^ (~e & g)) + K[t] + W[t];
    const uint32_t Sigma0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t T2 = Sigma0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + T1;
    d = c;
    c = b;
    b = a;
    a = T1 + T2;
  }
  const State change = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i)
    state[i] += change[i];
}

// The last bytes, a one bit, zeros, and the length in bits: one or two blocks.
void compress_tail(State& state, std::span<const std::byte> tail, uint64_t total_bytes) {
  std::array<std::byte, 2 * block_bytes> padded{};
  if (!tail.empty()) std::memcpy(padded.data(), tail.data(), tail.size());
  padded[tail.size()] = std::byte{0x80};
  const size_t used = tail.size() + 1 + sizeof(uint64_t) <= block_bytes ? block_bytes : 2 * block_bytes;
  const uint64_t length = __builtin_bswap64(8 * total_bytes);
  std::memcpy(padded.data() + used - sizeof length, &length, sizeof length);
  for (size_t at = 0; at < used; at += block_bytes)
    compress(state, padded.data() + at);
}

}  // namespace

std::string sha256_hex(std::span<const std::byte> bytes) {
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  size_t at = 0;
  for (; bytes.size() - at >= block_bytes; at += block_bytes)
    compress(state, bytes.data() + at);
  compress_tail(state, bytes.subspan(at), bytes.size());
  std::string hex;
  for (const uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4)
      hex += "0123456789abcdef"[(word >> shift) & 15];
  return hex;
}

std::string sha256_hex(std::string_view chars) {
  return sha256_hex(std::as_bytes(std::span(chars)));
}

}  // namespace hearth
