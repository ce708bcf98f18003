// The two implementations of CRC32C behind crc32c() of files.h, declared for it and for their test.
//
// Both take and return the raw register: crc32c() inverts before and after.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hearth {

// Eight tables, eight bytes a turn ("slicing by 8"; Kounavis and Berry, ISCC 2005).  Runs everywhere.
uint32_t crc32c_by_table(uint32_t state, std::span<const std::byte> bytes);

// True where crc32c_by_instruction() may be called.
bool has_crc32c_instruction();
// The crc32 instruction of SSE4.2.
uint32_t crc32c_by_instruction(uint32_t state, std::span<const std::byte> bytes);

}  // namespace hearth
