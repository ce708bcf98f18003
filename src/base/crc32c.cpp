// CRC32C: a portable table version, the x86 instruction, and the choice between them at run time.
#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/files.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace hearth {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: the register after byte b and k zero bytes, from zero.
constexpr Tables make_tables() {
  constexpr uint32_t polynomial = 0x82F63B78u;
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit)
      state = (state >> 1) ^ ((state & 1) ? polynomial : 0);
    tables[0][byte] = state;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables tables = make_tables();

static_assert(std::endian::native == std::endian::little, "file formats are read in place as little-endian");

uint64_t load_8_bytes(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

}  // namespace

uint32_t crc32c_by_table(uint32_t state, std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    const uint64_t word = load_8_bytes(at) ^ state;
    state = 0;
    for (size_t k = 0; k < 8; ++k)
      state ^= tables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; left > 0; ++at, --left)
    state = (state >> 8) ^ tables[0][(state ^ static_cast<uint8_t>(*at)) & 0xff];
  return state;
}

#if defined(__x86_64__)

bool has_crc32c_instruction() {
  return __builtin_cpu_supports("sse4.2") != 0;
}

__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(uint32_t state,
                                                                 std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t wide = state;
  for (; left >= 8; at += 8, left -= 8)
    wide = _mm_crc32_u64(wide, load_8_bytes(at));
  state = static_cast<uint32_t>(wide);
  for (; left > 0; ++at, --left)
    state = _mm_crc32_u8(state, static_cast<uint8_t>(*at));
  return state;
}

#else

bool has_crc32c_instruction() {
  return false;
}

uint32_t crc32c_by_instruction(uint32_t, std::span<const std::byte>) {
  check(false, "this processor has no crc32 instruction");
  return 0;
}

#endif

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  const uint32_t state = ~crc;
  return ~(has_crc32c_instruction() ? crc32c_by_instruction(state, bytes) : crc32c_by_table(state, bytes));
}

uint32_t crc32c(std::string_view chars, uint32_t crc) {
  return crc32c(std::as_bytes(std::span(chars)), crc);
}

}  // namespace hearth
