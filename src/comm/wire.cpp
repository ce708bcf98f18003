#include "comm/wire.h"

namespace hearth::wire {
namespace {

constexpr size_t header_size = 5;

void put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i)
    out += static_cast<char>(value >> (8 * i));
}

uint64_t get(std::string_view in) {
  uint64_t value = 0;
  for (size_t i = in.size(); i-- > 0;)
    value = value << 8 | static_cast<uint8_t>(in[i]);
  return value;
}

}  // namespace

Writer& Writer::u32(uint32_t value) {
  put(bytes_, value, 4);
  return *this;
}

Writer& Writer::u64(uint64_t value) {
  put(bytes_, value, 8);
  return *this;
}

Writer& Writer::string(std::string_view value) {
  put(bytes_, value.size(), 4);
  bytes_ += value;
  return *this;
}

std::string Writer::message(Kind kind) const {
  std::string out;
  put(out, bytes_.size(), 4);
  out += static_cast<char>(kind);
  return out + bytes_;
}

std::string_view Reader::take(size_t size) {
  if (size > rest_.size()) {
    ok_ = false;
    rest_ = {};
    return {};
  }
  const std::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

uint32_t Reader::u32() {
  return static_cast<uint32_t>(get(take(4)));
}

uint64_t Reader::u64() {
  return get(take(8));
}

std::string Reader::string() {
  return std::string(take(u32()));
}

std::optional<Message> Inbox::next() {
  if (bad_ || bytes_.size() < header_size) return std::nullopt;
  const size_t size = get(std::string_view(bytes_).substr(0, 4));
  const auto kind = static_cast<uint8_t>(bytes_[4]);
  if (size > longest_payload || kind > static_cast<uint8_t>(Kind::goodbye)) {
    bad_ = true;
    return std::nullopt;
  }
  if (bytes_.size() < header_size + size) return std::nullopt;
  Message message{static_cast<Kind>(kind), bytes_.substr(header_size, size)};
  bytes_.erase(0, header_size + size);
  return message;
}

}  // namespace hearth::wire
