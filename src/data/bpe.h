// Byte-pair encoding (Sennrich, Haddow, Birch 2016; byte level as in Radford et al. 2019): the merge table
// and the merging of one piece of text.
//
// Ids 0..255 are the bytes, in GPT-2's order; merge k makes id 256 + k.  The pair that makes the lowest id is
// merged first, the leftmost of equals before the others.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hearth {

// The byte that id 0..255 stands for: the printable bytes 33-126, 161-172, 174-255 first, then the other 68.
const std::array<uint8_t, 256>& gpt2_byte_order();

class MergeTable {
 public:
  MergeTable();

  // Adds the next merge.  Returns false, and changes nothing, when the pair is already there, when an id does
  // not exist yet, or when the token would be longer than `longest_token` bytes (a hostile table doubles its
  // tokens).
  bool add(int32_t left, int32_t right);

  // Appends the ids of one piece, in O(n log n) for n bytes.
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;

  int32_t size() const { return static_cast<int32_t>(bytes_.size()); }  // 256 + merges
  const std::string& bytes(int32_t id) const { return bytes_[id]; }
  const std::vector<std::pair<int32_t, int32_t>>& merges() const { return merges_; }

  static constexpr size_t longest_token = 1024;

 private:
  int32_t merged(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<std::string> bytes_;
  std::vector<std::pair<int32_t, int32_t>> merges_;
  std::unordered_map<uint64_t, int32_t> pairs_;  // left << 32 | right -> id
};

}  // namespace hearth
