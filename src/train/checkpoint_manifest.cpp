// manifest.json: from Manifest to bytes and back, and the names of a checkpoint's files.
#include "train/checkpoint_manifest.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"

namespace hearth {

namespace checkpoint_names {
namespace {

std::string padded(int64_t number, size_t digits) {
  const std::string plain = std::to_string(number);
  return std::string(plain.size() < digits ? digits - plain.size() : 0, '0') + plain;
}

// A number that is all of `digits`, or -1.
int64_t whole_number(std::string_view digits) {
  int64_t value = -1;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool all = result.ec == std::errc() && result.ptr == digits.data() + digits.size();
  return all && value >= 0 ? value : -1;
}

constexpr std::string_view step_prefix = "step-";
constexpr std::string_view temporary_mark = ".tmp.";

}  // namespace

std::string folder(int64_t step) {
  return std::string(step_prefix) + padded(step, 8);
}

int64_t step_of(const std::string& name) {
  if (!name.starts_with(step_prefix)) return -1;
  const int64_t step = whole_number(std::string_view(name).substr(step_prefix.size()));
  return step >= 0 && folder(step) == name ? step : -1;
}

std::string temporary(int64_t step, const std::string& purpose) {
  return text(folder(step), purpose.empty() ? "" : "." + purpose, temporary_mark, ::getpid());
}

int64_t pid_of_temporary(const std::string& name) {
  const size_t mark = name.rfind(temporary_mark);
  if (!name.starts_with(step_prefix) || mark == std::string::npos) return -1;
  return whole_number(std::string_view(name).substr(mark + temporary_mark.size()));
}

std::string model(int64_t process) {
  return "model-" + padded(process, 5) + ".safetensors";
}

std::string optimizer(int64_t process) {
  return "optimizer-" + padded(process, 5) + ".safetensors";
}

std::string key(CheckpointPiece::Kind kind, const std::string& name) {
  switch (kind) {
    case CheckpointPiece::Kind::master:
      return name;
    case CheckpointPiece::Kind::moment1:
      return "moment1." + name;
    case CheckpointPiece::Kind::moment2:
      return "moment2." + name;
  }
  return name;
}

}  // namespace checkpoint_names

namespace {

// hearth::quoted is written out because std::quoted, which the JSON library brings in,
// would be taken instead.
using nlohmann::json;

constexpr const char* kind_names[] = {"master", "moment1", "moment2"};
constexpr int deepest_nesting = 8;  // format 1 needs 6

std::string hex8(uint32_t value) {
  std::string digits(8, '0');
  for (int i = 7; i >= 0; --i, value >>= 4)
    digits[static_cast<size_t>(i)] = "0123456789abcdef"[value & 15];
  return digits;
}

std::string last_line(std::string_view everything_before) {
  return "\"crc32c\":\"" + hex8(crc32c(everything_before)) + "\"}\n";
}

// JSON in one line.  Paths in the configuration need not be UTF-8; a checkpoint is saved all the same.
std::string line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json json_of(const Shape& shape) {
  auto list = nlohmann::ordered_json::array();
  for (int i = 0; i < shape.rank(); ++i)
    list.push_back(shape[i]);
  return list;
}

nlohmann::ordered_json json_of(const ManifestTensor& tensor) {
  nlohmann::ordered_json out = {{"shape", json_of(tensor.shape)}};
  for (size_t kind = 0; kind < tensor.pieces.size(); ++kind)
    for (const ManifestPiece& piece : tensor.pieces[kind])
      out[kind_names[kind]].push_back({{"file", piece.file},
                                       {"key", piece.key},
                                       {"start", nlohmann::ordered_json(piece.start)},
                                       {"shape", json_of(piece.shape)}});
  return out;
}

nlohmann::ordered_json json_of(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

// Reads the fields of one JSON value; every wrong type is an Error(data) that names the field.
class ManifestReader {
 public:
  ManifestReader(const json& root, const fs::path& path) : root_(root), path_(path) {}

  Manifest read() const {
    Manifest m;
    CheckpointState& state = m.state;
    state.step = count(root_, "step");
    state.consumed_samples = count(root_, "consumed_samples");
    state.optimizer_step = count(root_, "optimizer_step");
    state.skipped_in_a_row = count(root_, "skipped_in_a_row");
    state.metrics_bytes = static_cast<uint64_t>(count(root_, "metrics_bytes"));
    state.val_loss = number_or_null(root_, "val_loss");
    state.best_val_loss = number_or_null(root_, "best_val_loss");
    state.data_fingerprint = text_of(root_, "data_fingerprint");
    m.world = count(root_, "world");
    for (const auto& [key, value] : object(root_, "config").items())
      state.config[key] =
          value.is_string() ? value.get<std::string>() : fail("config", "holds a value that is not text");
    for (const json& file : list(root_, "files"))
      m.files.push_back(file_of(file));
    const std::set<std::string> names = names_of(m.files);
    for (const auto& [name, tensor] : object(root_, "tensors").items())
      m.tensors[name] = tensor_of(tensor, names);
    return m;
  }

 private:
  [[noreturn]] std::string fail(const std::string& field, const std::string& problem) const {
    fail_data(path_.string(), " is not a valid checkpoint manifest: ", hearth::quoted(field), " ", problem);
  }

  const json& field(const json& parent, const char* key) const {
    if (!parent.is_object()) fail(key, "stands in something that is not an object");
    const auto it = parent.find(key);
    if (it == parent.end()) fail(key, "is missing");
    return *it;
  }
  const json& object(const json& parent, const char* key) const {
    const json& value = field(parent, key);
    if (!value.is_object()) fail(key, "is not an object");
    return value;
  }
  const json& list(const json& parent, const char* key) const {
    const json& value = field(parent, key);
    if (!value.is_array()) fail(key, "is not a list");
    return value;
  }
  int64_t count_of(const json& value, const char* key) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX)
      fail(key, "is not a whole number from 0 on");
    return value.get<int64_t>();
  }
  int64_t count(const json& parent, const char* key) const { return count_of(field(parent, key), key); }
  std::string text_of(const json& parent, const char* key) const {
    const json& value = field(parent, key);
    if (!value.is_string()) fail(key, "is not text");
    return value.get<std::string>();
  }
  std::optional<double> number_or_null(const json& parent, const char* key) const {
    const json& value = field(parent, key);
    if (value.is_null()) return std::nullopt;
    if (!value.is_number()) fail(key, "is neither a number nor null");
    return value.get<double>();
  }

  std::vector<int64_t> counts(const json& parent, const char* key) const {
    std::vector<int64_t> numbers;
    for (const json& value : list(parent, key))
      numbers.push_back(count_of(value, key));
    if (numbers.size() > Shape::max_rank) fail(key, text("has more than ", Shape::max_rank, " dimensions"));
    return numbers;
  }
  Shape shape_of(const json& parent) const {
    const std::vector<int64_t> n = counts(parent, "shape");
    int64_t elements = 1;
    for (const int64_t size : n)
      if (__builtin_mul_overflow(elements, size, &elements))
        fail("shape", "has more elements than can be counted");
    switch (n.size()) {
      case 0:
        return {};
      case 1:
        return {n[0]};
      case 2:
        return {n[0], n[1]};
      case 3:
        return {n[0], n[1], n[2]};
      default:
        return {n[0], n[1], n[2], n[3]};
    }
  }

  uint32_t crc_of(const json& parent) const {
    const std::string digits = text_of(parent, "crc32c");
    uint32_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (result.ec != std::errc() || hex8(value) != digits)
      fail("crc32c", "is not eight lower-case hexadecimal digits");
    return value;
  }
  ManifestFile file_of(const json& value) const {
    ManifestFile file = {text_of(value, "name"), static_cast<uint64_t>(count(value, "size")), crc_of(value)};
    // A manifest from elsewhere must not make us read outside its folder.
    if (file.name.empty() || file.name == "." || file.name == ".." ||
        file.name.find('/') != std::string::npos || file.name.find('\0') != std::string::npos)
      fail(file.name, "is not a plain file name");
    return file;
  }
  std::set<std::string> names_of(const std::vector<ManifestFile>& files) const {
    std::set<std::string> names;
    for (const ManifestFile& file : files)
      if (!names.insert(file.name).second) fail(file.name, "is listed twice");
    return names;
  }

  ManifestTensor tensor_of(const json& value, const std::set<std::string>& files) const {
    ManifestTensor tensor;
    tensor.shape = shape_of(value);
    for (size_t kind = 0; kind < tensor.pieces.size(); ++kind) {
      if (!value.contains(kind_names[kind])) continue;
      for (const json& piece : list(value, kind_names[kind]))
        tensor.pieces[kind].push_back(piece_of(piece, tensor.shape, files));
    }
    return tensor;
  }
  ManifestPiece piece_of(const json& value, const Shape& global, const std::set<std::string>& files) const {
    ManifestPiece piece = {text_of(value, "file"), text_of(value, "key"), counts(value, "start"),
                           shape_of(value)};
    if (!files.contains(piece.file))
      fail(piece.key, "lies in " + hearth::quoted(piece.file) + ", which is not in the list of files");
    const bool same_rank = piece.shape.rank() == global.rank() && std::ssize(piece.start) == global.rank();
    if (!same_rank) fail(piece.key, "has another number of dimensions than its tensor");
    for (int i = 0; i < global.rank(); ++i)
      if (piece.start[static_cast<size_t>(i)] > global[i] ||
          piece.shape[i] > global[i] - piece.start[static_cast<size_t>(i)])
        fail(piece.key, text("of shape ", piece.shape, " reaches beyond its tensor of shape ", global));
    return piece;
  }

  const json& root_;
  const fs::path& path_;
};

// The text before the last line, which must be right.
std::string_view checked_body(std::string_view text, const fs::path& path) {
  static const size_t last_line_bytes = last_line("").size();
  if (text.empty()) fail_data(path.string(), " is empty; the checkpoint is damaged");
  const size_t body_bytes = text.size() < last_line_bytes ? 0 : text.size() - last_line_bytes;
  const std::string_view body = text.substr(0, body_bytes);
  if (text.substr(body_bytes) != last_line(body))
    fail_data(path.string(), " is damaged: its ", text.size(),
              " bytes do not match the checksum in its last line");
  return body;
}

json parse_json(std::string_view text, const fs::path& path) {
  const auto limit_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > deepest_nesting)
      fail_data(path.string(), " is not a valid checkpoint manifest: nested too deeply");
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), limit_depth);
  } catch (const json::exception&) {
    fail_data(path.string(), " is not a valid checkpoint manifest: its text is not valid JSON");
  }
}

}  // namespace

std::string manifest_text(const Manifest& m) {
  const CheckpointState& state = m.state;
  std::string out = text("{\"format\":", checkpoint_format, ",\n");
  const auto add = [&out](const char* key, const nlohmann::ordered_json& value) {
    out += text("\"", key, "\":", line(value), ",\n");
  };
  add("step", state.step);
  add("consumed_samples", state.consumed_samples);
  add("optimizer_step", state.optimizer_step);
  add("skipped_in_a_row", state.skipped_in_a_row);
  add("metrics_bytes", state.metrics_bytes);
  add("val_loss", json_of(state.val_loss));
  add("best_val_loss", json_of(state.best_val_loss));
  add("data_fingerprint", state.data_fingerprint);
  add("world", m.world);
  add("config", nlohmann::ordered_json(state.config.empty() ? json::object() : json(state.config)));
  out += "\"files\":[";
  const char* separator = "\n";
  for (const ManifestFile& file : m.files) {
    out += separator + line({{"name", file.name}, {"size", file.size}, {"crc32c", hex8(file.crc)}});
    separator = ",\n";
  }
  out += "\n],\n\"tensors\":{";
  separator = "\n";
  for (const auto& [name, tensor] : m.tensors) {
    out += separator + line(name) + ":" + line(json_of(tensor));
    separator = ",\n";
  }
  out += "\n},\n";
  return out + last_line(out);
}

Manifest parse_manifest(std::string_view text, const fs::path& path) {
  checked_body(text, path);
  const json root = parse_json(text, path);
  const auto format = root.is_object() ? root.find("format") : root.end();
  if (format == root.end() || !format->is_number_unsigned())
    fail_data(path.string(), " is not a checkpoint manifest: it has no format number");
  if (format->get<uint64_t>() != checkpoint_format)
    throw UnknownFormat(ExitCode::data,
                        hearth::text(path.string(), " has checkpoint format ", format->get<uint64_t>(),
                                     ", and this program reads format ", checkpoint_format,
                                     "; use the version of hearth that wrote it"));
  return ManifestReader(root, path).read();
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / checkpoint_names::manifest;
  std::error_code error;
  if (!fs::exists(path, error))
    fail_data(folder.string(), " is not a finished checkpoint: it has no ", checkpoint_names::manifest);
  return parse_manifest(read_file(path), path);
}

}  // namespace hearth
