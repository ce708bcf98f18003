// The control plane's messages on the wire.
//
//   offset  size  field
//   0       4     length n of the payload, little endian
//   4       1     kind
//   5       n     payload: integers little endian, strings as u32 length + bytes
//
// The first message of a connection is `hello`; what does not start with its magic number is not one of us.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hearth::wire {

constexpr uint32_t magic = 0x48545248;  // "HRTH"
constexpr uint32_t version = 1;
constexpr size_t longest_payload = 16u << 20;

enum class Kind : uint8_t {
  hello,      // member -> coordinator: who I am
  welcome,    // coordinator -> member: everybody is here; who they are
  heartbeat,  // both: I live, and what I am doing
  put,        // member -> coordinator: key, value
  get,        // member -> coordinator: key
  value,      // coordinator -> member: key, value
  barrier,    // member -> coordinator: name, deadline
  release,    // coordinator -> member: name
  failure,    // both: rank, exit code, reason; the run is over
  goodbye,    // member -> coordinator: the end of the connection will not be a failure
};

struct Message {
  Kind kind;
  std::string payload;
};

// Builds a payload.
class Writer {
 public:
  Writer& u32(uint32_t value);
  Writer& u64(uint64_t value);
  Writer& string(std::string_view value);
  // The whole message.
  std::string message(Kind kind) const;

 private:
  std::string bytes_;
};

// Takes a payload apart.  Reading past its end gives zeros and empty strings, and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view payload) : rest_(payload) {}
  uint32_t u32();
  uint64_t u64();
  std::string string();
  bool ok() const { return ok_; }

 private:
  std::string_view take(size_t size);
  std::string_view rest_;
  bool ok_ = true;
};

// Collects received bytes and cuts them into messages.
class Inbox {
 public:
  void append(std::string_view bytes) { bytes_ += bytes; }
  // The next complete message.  Sets bad() when the bytes cannot be a message.
  std::optional<Message> next();
  bool bad() const { return bad_; }

 private:
  std::string bytes_;
  bool bad_ = false;
};

}  // namespace hearth::wire
