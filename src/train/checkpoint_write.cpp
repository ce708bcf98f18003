// Writing a checkpoint: see checkpoint.h for the protocol.  Every file is planned before anything is written,
// so that the room it needs is known to the byte.
#include <fcntl.h>
#include <stdio.h>  // renameat2
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "train/checkpoint.h"
#include "train/checkpoint_manifest.h"
#include "train/safetensors.h"

namespace hearth {
namespace {

constexpr int64_t buffer_bytes = 8 << 20;
// For folders, the last block of each file, and `latest`.
constexpr uint64_t file_system_overhead = 64 << 10;

// One safetensors file: the tensors in the order of its header.
struct TensorFilePlan {
  std::string name;
  std::string header;
  std::vector<Tensor> tensors;
  uint64_t bytes = 0;
};

TensorFilePlan plan_file(const std::string& name, std::vector<SafetensorsEntry> entries,
                         std::vector<Tensor> tensors) {
  TensorFilePlan plan = {name, safetensors_header(entries), std::move(tensors)};
  plan.bytes = plan.header.size() + (entries.empty() ? 0 : entries.back().end);
  return plan;
}

// Hands out a tensor's bytes in blocks of at most buffer_bytes.
template <class Sink>
void stream(const Tensor& tensor, Device& device, std::vector<std::byte>& buffer, const Sink& sink) {
  check(tensor.contiguous(), "a saved tensor has gaps, shape ", tensor.shape);
  const int64_t elements = tensor.elements();
  const int64_t block = buffer_bytes / size_of(tensor.dtype);
  const Tensor flat = tensor.reshaped({elements});
  for (int64_t begin = 0; begin < elements; begin += block) {
    const Tensor part = flat.slice(0, begin, std::min(block, elements - begin));
    buffer.resize(static_cast<size_t>(std::max<int64_t>(part.bytes(), std::ssize(buffer))));
    device.copy_out(buffer.data(), part);
    sink(std::span<const std::byte>(buffer).first(static_cast<size_t>(part.bytes())));
  }
}

template <class Sink>
void stream(const TensorFilePlan& plan, Device& device, const Sink& sink) {
  std::vector<std::byte> buffer;
  sink(std::as_bytes(std::span(plan.header)));
  for (const Tensor& tensor : plan.tensors)
    stream(tensor, device, buffer, sink);
}

void write_tensor_file(const fs::path& path, const TensorFilePlan& plan, Device& device, uint32_t& crc) {
  FileWriter writer(path);
  stream(plan, device, [&](std::span<const std::byte> bytes) { writer.write(bytes); });
  writer.finish();
  crc = writer.crc();
}

[[noreturn]] void fail_system(const char* action, const fs::path& path, int error) {
  fail_data("cannot ", action, " ", path.string(), ": ", std::system_category().message(error));
}

void create_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_system("create", path, error.value());
}

void remove_quietly(const fs::path& path) noexcept {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// `fresh` takes the place of `target`.  Where there is a target, both change names in one step, or, on file
// systems that cannot do that, in two: then a crash between them leaves only older checkpoints.
void put_in_place(const fs::path& fresh, const fs::path& target, const fs::path& aside) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error))) {
    if (::rename(fresh.c_str(), target.c_str()) != 0) fail_system("create", target, errno);
    return;
  }
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    remove_quietly(fresh);
    return;
  }
  remove_quietly(aside);
  if (::rename(target.c_str(), aside.c_str()) != 0) fail_system("move aside", target, errno);
  if (::rename(fresh.c_str(), target.c_str()) != 0) {
    const int reason = errno;
    [[maybe_unused]] const int back = ::rename(aside.c_str(), target.c_str());
    fail_system("create", target, reason);
  }
  remove_quietly(aside);
}

class CheckpointWriter {
 public:
  CheckpointWriter(const fs::path& folder, const CheckpointState& state,
                   std::span<const CheckpointPiece> pieces, Device& device, const CheckpointTeam& team)
      : folder_(folder), state_(state), device_(device), team_(team) {
    manifest_.state = state;
    manifest_.world = team.world;
    plan_tensors(pieces, checkpoint_names::model(team.rank), true);
    plan_tensors(pieces, checkpoint_names::optimizer(team.rank), false);
    for (const TensorFilePlan& plan : plans_)
      manifest_.files.push_back({plan.name, plan.bytes, 0});
    if (writes_tokenizer())
      manifest_.files.push_back({checkpoint_names::tokenizer, state.tokenizer_json.size(),
                                 crc32c(std::string_view(state.tokenizer_json))});
  }

  fs::path write() { return team_.world > 1 ? write_together() : write_alone(); }

 private:
  fs::path write_alone() {
    const fs::path target = folder_ / checkpoint_names::folder(state_.step);
    if (!already_there(target)) {
      const uint64_t needed = bytes_needed();
      check_room(target, needed);
      const fs::path temporary = folder_ / checkpoint_names::temporary(state_.step);
      try {
        write_folder(temporary);
        put_in_place(temporary, target, folder_ / checkpoint_names::temporary(state_.step, "replaced"));
        sync_folder(folder_);
      } catch (const Error& error) {
        remove_quietly(temporary);
        throw Error(error.code(), text("cannot save the checkpoint of step ", state_.step, ": ", error.what(),
                                       " (", room(needed), ")"));
      }
    }
    announce(target);
    return target;
  }

  // Rank 0 opens the folder, all write their files into it, rank 0 completes it.  After each part all ranks
  // know whether it went well everywhere, and throw the same error if not.
  fs::path write_together() {
    const std::vector<std::string> needs = team_.gather(std::to_string(bytes_needed()));
    const fs::path temporary = agreed([&] { return open_temporary(needs); });
    const std::vector<std::string> parts = team_.gather(attempt([&] {
      write_files(temporary);
      return manifest_text(manifest_);
    }));
    return agreed([&] { return complete(temporary, parts); });
  }

  // The outcome of some work as text: "+result", or "-code sentence".
  static std::string attempt(const std::function<std::string()>& work) {
    try {
      return "+" + work();
    } catch (const Error& error) {
      return text("-", static_cast<int>(error.code()), " ", error.what());
    }
  }
  static std::string value_of(const std::string& outcome) {
    if (outcome.at(0) == '+') return outcome.substr(1);
    const size_t space = outcome.find(' ');
    throw Error(static_cast<ExitCode>(std::stoi(outcome.substr(1, space - 1))), outcome.substr(space + 1));
  }
  // Work of rank 0 whose outcome is everybody's.
  std::string agreed(const std::function<std::string()>& work) {
    return value_of(team_.broadcast(team_.rank == 0 ? attempt(work) : ""));
  }

  std::string open_temporary(const std::vector<std::string>& needs) {
    uint64_t needed = 0;
    for (const std::string& bytes : needs)
      needed += std::stoull(bytes);
    check_room(folder_ / checkpoint_names::folder(state_.step), needed);
    const fs::path temporary = folder_ / checkpoint_names::temporary(state_.step);
    create_temporary(temporary);
    return temporary.string();
  }

  // Puts the ranks' parts of the manifest together, and the checkpoint in its place.
  std::string complete(const fs::path& temporary, const std::vector<std::string>& parts) {
    const fs::path target = folder_ / checkpoint_names::folder(state_.step);
    try {
      for (size_t rank = 1; rank < parts.size(); ++rank)
        add_part(parse_manifest(value_of(parts[rank]), temporary / checkpoint_names::manifest));
      value_of(parts[0]);
      write_text(temporary / checkpoint_names::manifest, manifest_text(manifest_));
      sync_folder(temporary);
      put_in_place(temporary, target, folder_ / checkpoint_names::temporary(state_.step, "replaced"));
      sync_folder(folder_);
    } catch (const Error& error) {
      remove_quietly(temporary);
      throw Error(error.code(), text("cannot save the checkpoint of step ", state_.step, ": ", error.what()));
    }
    announce(target);
    return target.string();
  }

  void add_part(const Manifest& part) {
    manifest_.files.insert(manifest_.files.end(), part.files.begin(), part.files.end());
    for (const auto& [name, tensor] : part.tensors) {
      ManifestTensor& whole = manifest_.tensors[name];
      whole.shape = tensor.shape;
      for (size_t kind = 0; kind < whole.pieces.size(); ++kind)
        whole.pieces[kind].insert(whole.pieces[kind].end(), tensor.pieces[kind].begin(),
                                  tensor.pieces[kind].end());
    }
  }

  bool writes_tokenizer() const { return team_.rank == 0 && !state_.tokenizer_json.empty(); }

  // Plans the file of the master weights, or of the moments.  A file without tensors is not written.
  void plan_tensors(std::span<const CheckpointPiece> pieces, const std::string& file, bool master) {
    std::vector<SafetensorsEntry> entries;
    std::vector<Tensor> tensors;
    for (const CheckpointPiece& piece : pieces) {
      if ((piece.kind == CheckpointPiece::Kind::master) != master) continue;
      const std::string key = checkpoint_names::key(piece.kind, piece.name);
      add_to_manifest(piece, file, key);
      entries.push_back({key, piece.local.dtype, piece.local.shape, 0, 0});
      tensors.push_back(piece.local);
    }
    if (!entries.empty()) plans_.push_back(plan_file(file, std::move(entries), std::move(tensors)));
  }

  void add_to_manifest(const CheckpointPiece& piece, const std::string& file, const std::string& key) {
    const Shape& local = piece.local.shape;
    const Shape& global = piece.global_shape;
    check(local.rank() == global.rank() && std::ssize(piece.start) == global.rank(), "piece of ", piece.name,
          ": local ", local, ", global ", global, ", start of ", piece.start.size(), " numbers");
    for (int i = 0; i < global.rank(); ++i)
      check(piece.start[static_cast<size_t>(i)] + local[i] <= global[i], "piece of ", piece.name,
            " of shape ", local, " reaches beyond ", global, " in dimension ", i);
    ManifestTensor& tensor = manifest_.tensors[piece.name];
    const bool first =
        std::all_of(tensor.pieces.begin(), tensor.pieces.end(), [](const auto& p) { return p.empty(); });
    check(first || tensor.shape == global, piece.name, " has two global shapes, ", tensor.shape, " and ",
          global);
    tensor.shape = global;
    tensor.pieces[static_cast<size_t>(piece.kind)].push_back({file, key, piece.start, local});
  }

  // Whether the checkpoint at `target` is whole and holds exactly what would be written.
  bool already_there(const fs::path& target) {
    std::error_code error;
    if (!fs::exists(target, error)) return false;
    try {
      const CheckpointReader whole(target);
    } catch (const Error&) {
      return false;
    }
    for (size_t i = 0; i < plans_.size(); ++i) {
      uint32_t& crc = manifest_.files[i].crc;
      crc = 0;
      stream(plans_[i], device_, [&](std::span<const std::byte> bytes) { crc = crc32c(bytes, crc); });
    }
    return read_file(target / checkpoint_names::manifest) == manifest_text(manifest_);
  }

  uint64_t bytes_needed() const {
    // Checksums have a fixed width: the manifest's size is known before they are.
    uint64_t bytes = file_system_overhead + manifest_text(manifest_).size();
    for (const ManifestFile& file : manifest_.files)
      bytes += file.size;
    return bytes;
  }

  std::string room(uint64_t needed) const {
    return text("it needs ", human_bytes(needed), " and ", human_bytes(free_disk_bytes(folder_)),
                " are free");
  }

  void check_room(const fs::path& target, uint64_t needed) const {
    if (free_disk_bytes(folder_) >= needed) return;
    fail_data("cannot save the checkpoint ", target.string(), ": ", room(needed),
              "; free some space, or keep fewer checkpoints with --checkpoint.keep=N");
  }

  void write_folder(const fs::path& temporary) {
    create_temporary(temporary);
    write_files(temporary);
    write_text(temporary / checkpoint_names::manifest, manifest_text(manifest_));
    sync_folder(temporary);
  }

  void create_temporary(const fs::path& temporary) const {
    const bool fresh = !fs::exists(folder_);
    create_folder(folder_);
    if (fresh) sync_folder(folder_.has_parent_path() ? folder_.parent_path() : fs::path("."));
    // In a container every process may have the same id: a killed one's leftover can have our name.
    remove_quietly(temporary);
    create_folder(temporary);
  }

  // The files of this rank.
  void write_files(const fs::path& temporary) {
    for (size_t i = 0; i < plans_.size(); ++i)
      write_tensor_file(temporary / plans_[i].name, plans_[i], device_, manifest_.files[i].crc);
    if (writes_tokenizer()) write_text(temporary / checkpoint_names::tokenizer, state_.tokenizer_json);
  }

  static void write_text(const fs::path& path, std::string_view content) {
    FileWriter writer(path);
    writer.write(content);
    writer.finish();
  }

  void announce(const fs::path& target) const {
    try {
      write_file_atomically(folder_ / checkpoint_names::latest, target.filename().string() + "\n");
    } catch (const Error& error) {
      throw Error(error.code(), text("the checkpoint ", target.string(), " is complete, but ", error.what()));
    }
  }

  const fs::path& folder_;
  const CheckpointState& state_;
  Device& device_;
  const CheckpointTeam& team_;
  std::vector<TensorFilePlan> plans_;
  Manifest manifest_;  // its first files are plans_
};

}  // namespace

fs::path write_checkpoint(const fs::path& folder, const CheckpointState& state,
                          std::span<const CheckpointPiece> pieces, Device& device,
                          const CheckpointTeam& team) {
  return CheckpointWriter(folder, state, pieces, device, team).write();
}

void write_safetensors(const fs::path& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       Device& device) {
  std::vector<SafetensorsEntry> entries;
  std::vector<Tensor> views;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.dtype, tensor.shape, 0, 0});
    views.push_back(tensor);
  }
  fs::path temporary = path;
  temporary += ".tmp";
  uint32_t crc = 0;
  write_tensor_file(temporary, plan_file(path.filename(), std::move(entries), std::move(views)), device, crc);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    fail_system("replace", path, error);
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

}  // namespace hearth
