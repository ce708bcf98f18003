// The safetensors container.  The header comes from anywhere, so it is read event by event: nothing is built
// from it that its rules do not allow, and nesting costs no stack.
#include "train/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace hearth {
namespace {

// hearth::quoted is written out because std::quoted, which the JSON library brings in,
// would be taken instead.
using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so is Hearth");

constexpr size_t length_bytes = sizeof(uint64_t);
constexpr uint64_t longest_header = 100'000'000;
constexpr std::string_view metadata_key = "__metadata__";
constexpr DType known_types[] = {DType::f64, DType::f32, DType::bf16, DType::i32, DType::u8};

// Follows the header's grammar; everything else is an error:
//   { ["__metadata__": {name: text ...}] , key: {"dtype": text, "shape": [n ...], "data_offsets": [n, n]} ... }
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const fs::path& path) : path_(path) {}

  std::vector<SafetensorsEntry> take_entries() { return std::move(entries_); }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::start:
        place_ = Place::top;
        return true;
      case Place::metadata_value:
        place_ = Place::metadata;
        return true;
      case Place::tensor_value:
        place_ = Place::tensor;
        return true;
      default:
        unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    if (place_ == Place::top) {
      top_key(name);
    } else if (place_ == Place::metadata) {
      if (!metadata_keys_.insert(name).second)
        fail("its metadata has the key ", hearth::quoted(name), " twice");
      place_ = Place::metadata_text;
    } else {
      tensor_key(name);
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata_text) {
      place_ = Place::metadata;
      return true;
    }
    if (place_ != Place::dtype) unexpected("a text");
    set_dtype(value);
    place_ = Place::tensor;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::shape_value) {
      place_ = Place::shape;
    } else if (place_ == Place::offsets_value) {
      place_ = Place::offsets;
    } else {
      unexpected("a list");
    }
    numbers_.clear();
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) unexpected("a number");
    if (place_ == Place::shape && numbers_.size() == Shape::max_rank)
      fail("tensor ", hearth::quoted(name_), " has more than ", Shape::max_rank,
           " dimensions, which Hearth does not read");
    if (place_ == Place::offsets && numbers_.size() == 2)
      fail("data_offsets of tensor ", hearth::quoted(name_), " has more than two numbers");
    numbers_.push_back(value);
    return true;
  }

  bool end_array() override {
    place_ == Place::shape ? set_shape() : set_offsets();
    place_ = Place::tensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) finish_tensor();
    place_ = place_ == Place::top ? Place::end : Place::top;
    return true;
  }

  bool null() override { unexpected("a null"); }
  bool boolean(bool) override { unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { unexpected("a fraction or a huge number"); }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail("its header is not valid JSON at byte ", length_bytes + position);
  }

 private:
  enum class Place : uint8_t {
    start,
    top,
    metadata_value,
    metadata,
    metadata_text,
    tensor_value,
    tensor,
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets,
    end
  };

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_data(path_.string(), " is not a valid safetensors file: ", parts...);
  }
  [[noreturn]] void unexpected(const char* what) const {
    if (name_.empty()) fail("its header has ", what, " in a place where the format has none");
    fail("its header has ", what, " in a place where the format has none, at or after tensor ",
         hearth::quoted(name_));
  }

  void top_key(const std::string& name) {
    if (!keys_.insert(name).second) fail("its header has the key ", hearth::quoted(name), " twice");
    if (name == metadata_key) {
      place_ = Place::metadata_value;
      return;
    }
    name_ = name;
    entry_ = {};
    entry_.key = name;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    place_ = Place::tensor_value;
  }

  void tensor_key(const std::string& field) {
    if (field == "dtype") {
      once(has_dtype_, field);
      place_ = Place::dtype;
    } else if (field == "shape") {
      once(has_shape_, field);
      place_ = Place::shape_value;
    } else if (field == "data_offsets") {
      once(has_offsets_, field);
      place_ = Place::offsets_value;
    } else {
      fail("tensor ", hearth::quoted(name_), " has the unknown field ", hearth::quoted(field));
    }
  }

  void once(bool& seen, const std::string& field) const {
    if (seen) fail("tensor ", hearth::quoted(name_), " has ", field, " twice");
    seen = true;
  }

  void set_dtype(const std::string& value) {
    for (const DType type : known_types) {
      if (name_of(type) != value) continue;
      entry_.dtype = type;
      return;
    }
    fail("tensor ", hearth::quoted(name_), " has type ", hearth::quoted(value),
         "; Hearth reads F64, F32, BF16, I32 and U8");
  }

  void set_shape() {
    Shape shape;
    for (const uint64_t size : numbers_) {
      if (size > INT64_MAX) fail("tensor ", hearth::quoted(name_), " has a dimension of ", size);
      shape = appended(shape, static_cast<int64_t>(size));
    }
    entry_.shape = shape;
  }

  void set_offsets() {
    if (numbers_.size() != 2)
      fail("data_offsets of tensor ", hearth::quoted(name_), " has fewer than two numbers");
    entry_.begin = numbers_[0];
    entry_.end = numbers_[1];
  }

  void finish_tensor() {
    if (!has_dtype_) fail("tensor ", hearth::quoted(name_), " has no dtype");
    if (!has_shape_) fail("tensor ", hearth::quoted(name_), " has no shape");
    if (!has_offsets_) fail("tensor ", hearth::quoted(name_), " has no data_offsets");
    uint64_t bytes = static_cast<uint64_t>(size_of(entry_.dtype));
    for (int i = 0; i < entry_.shape.rank(); ++i)
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(entry_.shape[i]), &bytes))
        fail("tensor ", hearth::quoted(name_), " of shape ", entry_.shape,
             " has more bytes than can be counted");
    if (entry_.begin > entry_.end || entry_.end - entry_.begin != bytes)
      fail("tensor ", hearth::quoted(name_), " of type ", name_of(entry_.dtype), " and shape ", entry_.shape,
           " needs ", bytes, " bytes, but its data_offsets are [", entry_.begin, ", ", entry_.end, "]");
    entries_.push_back(std::move(entry_));
  }

  static Shape appended(const Shape& shape, int64_t size) {
    switch (shape.rank()) {
      case 0:
        return {size};
      case 1:
        return {shape[0], size};
      case 2:
        return {shape[0], shape[1], size};
      default:
        return {shape[0], shape[1], shape[2], size};
    }
  }

  const fs::path& path_;
  Place place_ = Place::start;
  std::vector<SafetensorsEntry> entries_;
  std::set<std::string> keys_;
  std::set<std::string> metadata_keys_;
  std::string name_;  // of the tensor being read
  SafetensorsEntry entry_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::vector<uint64_t> numbers_;
};

// The header's text: the bytes between the length word and the data.
std::string_view header_text(std::string_view file, const fs::path& path) {
  if (file.empty()) fail_data(path.string(), " is empty; it should be a safetensors file");
  if (file.size() < length_bytes)
    fail_data(path.string(), " is not a safetensors file: it has only ", file.size(), " bytes");
  uint64_t length;
  std::memcpy(&length, file.data(), length_bytes);
  if (length > longest_header)
    fail_data(path.string(), " is not a safetensors file: its first 8 bytes give a header of ", length,
              " bytes, and the format allows ", longest_header);
  if (length > file.size() - length_bytes)
    fail_data(path.string(), " is cut off: its header has ", length, " bytes and the file only ",
              file.size());
  const std::string_view header = file.substr(length_bytes, length);
  if (header.empty() || header[0] != '{')
    fail_data(path.string(), " is not a safetensors file: its header does not start with {");
  return header;
}

// Sorts by offset and checks that the tensors fill the data exactly.
void check_layout(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes, const fs::path& path) {
  // Empty tensors share their offset with a neighbour and come before it.
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t position = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != position)
      fail_data(path.string(), " is not a valid safetensors file: the data of tensor ",
                hearth::quoted(entry.key), " begins at ", entry.begin,
                entry.begin < position ? ", inside" : ", after a hole behind",
                " the previous one, which ends at ", position);
    position = entry.end;
  }
  if (position != data_bytes)
    fail_data(path.string(), position > data_bytes ? " is cut off" : " has bytes that belong to no tensor",
              ": its tensors need ", position, " bytes and it holds ", data_bytes);
}

}  // namespace

std::string safetensors_header(std::vector<SafetensorsEntry>& entries) {
  nlohmann::ordered_json header;
  header[std::string(metadata_key)] = {{"format", "pt"}};
  uint64_t position = 0;
  for (SafetensorsEntry& entry : entries) {
    check(!header.contains(entry.key), "two tensors named ", entry.key);
    entry.begin = position;
    position += static_cast<uint64_t>(entry.shape.elements() * size_of(entry.dtype));
    entry.end = position;
    auto shape = nlohmann::ordered_json::array();
    for (int i = 0; i < entry.shape.rank(); ++i)
      shape.push_back(entry.shape[i]);
    header[entry.key] = {
        {"dtype", name_of(entry.dtype)}, {"shape", shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), length_bytes) + text;
}

SafetensorsContents parse_safetensors(std::string_view file, const fs::path& path) {
  const std::string_view header = header_text(file, path);
  HeaderReader reader(path);
  json::sax_parse(header.begin(), header.end(), &reader);
  SafetensorsContents contents = {length_bytes + header.size(), reader.take_entries()};
  check_layout(contents.entries, file.size() - contents.data_begin, path);
  return contents;
}

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : file_(path), contents_(parse_safetensors(file_.chars(), path)) {
  for (size_t i = 0; i < contents_.entries.size(); ++i)
    index_[contents_.entries[i].key] = i;
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &contents_.entries[it->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(contents_.data_begin + entry.begin, entry.end - entry.begin);
}

}  // namespace hearth
