// The emulator's tensor map: what stands in the 128 opaque bytes of a CUtensorMap.
#pragma once

#include <cstdint>

#include "emulator/site.h"

namespace hearth::emulator {

enum class Swizzle : uint32_t { none = 0, bytes32 = 1, bytes64 = 2, bytes128 = 3 };  // as CUtensorMapSwizzle

struct TensorMap2d {
  static constexpr uint64_t signature = 0x3270616d726f736eu;  // "nsormap2"
  uint64_t magic;
  char* base;
  uint64_t columns, rows;  // in elements
  uint64_t pitch;          // bytes from row to row
  uint32_t box_columns, box_rows;
  uint32_t element_bytes;
  Swizzle swizzle;
};

// A function with cuTensorMapEncodeTiled's signature.
void* tensor_map_encoder();

// Shared addresses are permuted: address bits 4-6 are XORed with bits 7-9
// (of which a narrower swizzle uses fewer).
constexpr uint32_t swizzled(uint32_t address, Swizzle mode) {
  switch (mode) {
    case Swizzle::none:
      return address;
    case Swizzle::bytes32:
      return address ^ (address >> 3 & 0x10);
    case Swizzle::bytes64:
      return address ^ (address >> 3 & 0x30);
    case Swizzle::bytes128:
      return address ^ (address >> 3 & 0x70);
  }
  return address;
}

}  // namespace hearth::emulator
