// The safetensors container: u64 header length, JSON header, raw little-endian data.
//
// Files that Hearth writes have `"__metadata__":{"format":"pt"}`, a header padded with spaces to a multiple
// of 8 bytes, and tensors in the order given, without holes.  The reader enforces the format's rules: a
// header of at most 100,000,000 bytes, no holes, no overlap, no duplicate key, sizes that agree with shapes
// and with the file.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "tensor/tensor.h"

namespace hearth {

struct SafetensorsEntry {
  std::string key;
  DType dtype = DType::f32;
  Shape shape;
  uint64_t begin = 0;  // from the end of the header
  uint64_t end = 0;
};

// The header bytes (length word included) for tensors laid out in the given order; fills begin and end.
std::string safetensors_header(std::vector<SafetensorsEntry>& entries);

// What the bytes of a whole file hold: where the tensors' data begins, and the tensors in the order of their
// data.  Throws Error(data) naming `path` and the rule that is broken.
struct SafetensorsContents {
  uint64_t data_begin = 0;
  std::vector<SafetensorsEntry> entries;
};
SafetensorsContents parse_safetensors(std::string_view file, const fs::path& path);

class SafetensorsFile {
 public:
  // Maps and validates; throws Error(data) naming the file and the rule that is broken.
  explicit SafetensorsFile(const fs::path& path);

  // In the order of their data.
  const std::vector<SafetensorsEntry>& entries() const { return contents_.entries; }
  // By key, or null.
  const SafetensorsEntry* find(const std::string& key) const;
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  const fs::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  SafetensorsContents contents_;
  std::map<std::string, size_t> index_;
};

}  // namespace hearth
