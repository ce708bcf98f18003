// Byte-pair encoding; see bpe.h.
#include "data/bpe.h"

#include <limits>
#include <queue>

#include "base/error.h"

namespace hearth {
namespace {

constexpr int32_t no_merge = std::numeric_limits<int32_t>::max();
constexpr int32_t none = -1;

bool is_printable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

std::array<uint8_t, 256> make_byte_order() {
  std::array<uint8_t, 256> order;
  size_t id = 0;
  for (const bool printable : {true, false})
    for (int byte = 0; byte < 256; ++byte)
      if (is_printable(byte) == printable) order[id++] = static_cast<uint8_t>(byte);
  return order;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(left) << 32) | static_cast<uint32_t>(right);
}

// One token of the piece being merged: a doubly linked list in an array.
struct Link {
  int32_t id;  // none once merged into its left neighbour
  int32_t previous;
  int32_t next;
};

// A merge that was possible when it was queued.
struct Candidate {
  int32_t id;  // of the merged token
  int32_t at;  // index of the left link
  bool operator>(const Candidate& other) const { return id != other.id ? id > other.id : at > other.at; }
};

}  // namespace

const std::array<uint8_t, 256>& gpt2_byte_order() {
  static const std::array<uint8_t, 256> order = make_byte_order();
  return order;
}

MergeTable::MergeTable() {
  for (int32_t id = 0; id < 256; ++id) {
    const uint8_t byte = gpt2_byte_order()[id];
    byte_ids_[byte] = id;
    bytes_.emplace_back(1, static_cast<char>(byte));
  }
}

bool MergeTable::add(int32_t left, int32_t right) {
  if (left < 0 || right < 0 || left >= size() || right >= size()) return false;
  if (bytes_[left].size() + bytes_[right].size() > longest_token) return false;
  if (!pairs_.emplace(pair_key(left, right), size()).second) return false;
  merges_.emplace_back(left, right);
  bytes_.push_back(bytes_[left] + bytes_[right]);
  return true;
}

int32_t MergeTable::merged(int32_t left, int32_t right) const {
  const auto found = pairs_.find(pair_key(left, right));
  return found == pairs_.end() ? no_merge : found->second;
}

void MergeTable::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    fail_data("a word of ", piece.size(), " bytes without a break is too long for the gpt2 tokenizer");
  const int32_t count = static_cast<int32_t>(piece.size());
  std::vector<Link> links(count);
  for (int32_t i = 0; i < count; ++i)
    links[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < count ? i + 1 : none};

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int32_t at) {
    if (at == none || links[at].next == none) return;
    const int32_t id = merged(links[at].id, links[links[at].next].id);
    if (id != no_merge) queue.push({id, at});
  };
  for (int32_t i = 0; i < count; ++i)
    consider(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Link& left = links[best.at];
    // Stale when the left token is gone or the pair now there is another one.
    if (left.id == none || left.next == none) continue;
    Link& right = links[left.next];
    if (merged(left.id, right.id) != best.id) continue;
    left.id = best.id;
    right.id = none;
    left.next = right.next;
    if (left.next != none) links[left.next].previous = best.at;
    consider(left.previous);
    consider(best.at);
  }
  for (const Link& link : links)
    if (link.id != none) ids.push_back(link.id);
}

}  // namespace hearth
