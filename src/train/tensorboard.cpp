// TensorBoard event files: a sequence of records, each
//   u64 length | u32 masked CRC32C of the length | data | u32 masked CRC32C of the data (little-endian)
// whose data is the protobuf message Event { 1: double wall_time; 2: int64 step; 3: string file_version;
// 5: Summary { 1: Value { 1: string tag; 2: float simple_value } } }.
// The first record has file_version only.
#include <unistd.h>

#include <bit>
#include <cstring>
#include <ctime>

#include "base/error.h"
#include "train/metrics.h"

namespace hearth {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian, and so is Hearth");

template <class T>
std::string raw_bytes(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// A checksum of data that holds checksums is weak, so that they are stored rotated and shifted.
std::string masked_crc(std::string_view bytes) {
  return raw_bytes<uint32_t>(std::rotr(crc32c(bytes), 15) + 0xa282ead8u);
}

std::string record(const std::string& data) {
  const std::string length = raw_bytes<uint64_t>(data.size());
  return length + masked_crc(length) + data + masked_crc(data);
}

// Seven bits a byte, lowest first.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7)
    bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// Protobuf fields: a tag of number * 8 + wire type, then the value.
std::string double_field(int number, double value) {
  return static_cast<char>(number * 8 + 1) + raw_bytes(value);
}
std::string float_field(int number, float value) {
  return static_cast<char>(number * 8 + 5) + raw_bytes(value);
}
std::string integer_field(int number, int64_t value) {
  return static_cast<char>(number * 8) + varint(static_cast<uint64_t>(value));
}
std::string bytes_field(int number, const std::string& value) {
  return static_cast<char>(number * 8 + 2) + varint(value.size()) + value;
}

fs::path unused_name(const fs::path& folder) {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') std::strcpy(host, "unknown");
  const std::string prefix =
      text("events.out.tfevents.", static_cast<int64_t>(std::time(nullptr)), ".", host, ".", ::getpid(), ".");
  int n = 0;
  while (fs::exists(folder / text(prefix, n)))
    ++n;
  return folder / text(prefix, n);
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const fs::path& folder)
    : file_(std::make_unique<LineFile>(unused_name(folder), 0)) {
  file_->append_bytes(file_version_record(static_cast<double>(std::time(nullptr))));
}

TensorBoardWriter::~TensorBoardWriter() = default;

void TensorBoardWriter::scalar(const std::string& tag, int64_t step, double value, double wall_time) {
  file_->append_bytes(scalar_record(tag, step, static_cast<float>(value), wall_time));
}

std::string TensorBoardWriter::file_version_record(double wall_time) {
  return record(double_field(1, wall_time) + bytes_field(3, "brain.Event:2"));
}

std::string TensorBoardWriter::scalar_record(const std::string& tag, int64_t step, float value,
                                             double wall_time) {
  const std::string summary = bytes_field(1, bytes_field(1, tag) + float_field(2, value));
  // Protobuf leaves out a number that has its default value.
  const std::string step_field = step == 0 ? "" : integer_field(2, step);
  return record(double_field(1, wall_time) + step_field + bytes_field(5, summary));
}

}  // namespace hearth
