// manifest.json of a checkpoint, format 1, and the names of a checkpoint's files.
//
// The manifest is one JSON object in UTF-8.  Its first line is `{"format":N,` and its last line is
// `"crc32c":"XXXXXXXX"}` and a newline, where XXXXXXXX is the CRC32C (Castagnoli; eight lower-case
// hexadecimal digits) of every byte before that line.  Every future format keeps these two lines; a reader
// checks the last one first, then refuses a format that it does not know.  Fields that a reader does not know
// are skipped; a change that such a reader would get wrong needs a new format number.  Format 1 has, in this
// order:
//
//   step, consumed_samples      whole numbers, see CheckpointState
//   optimizer_step              a whole number
//   skipped_in_a_row            a whole number
//   metrics_bytes               a whole number
//   val_loss, best_val_loss     numbers or null
//   data_fingerprint            text
//   world                       number of processes that wrote pieces
//   config                      "section.key" -> TOML literal of its value, as text
//   files                       every other file of the folder that belongs to the checkpoint: name (without
//                               a folder), size in bytes, CRC32C as eight lower-case hexadecimal digits
//   tensors                     name -> shape of the global tensor, and for each of "master", "moment1",
//                               "moment2" that was saved the list of its pieces
//
// A piece {file, key, start, shape} says: tensor `key` of the safetensors file `file` has the shape `shape`,
// and holds the elements of the global tensor from index `start` on.  Pieces may overlap where processes hold
// copies; then they hold equal values.  Example, a checkpoint of one tensor [4, 2] written by two processes:
//
//   {"format":1,
//   "step":500,
//   "consumed_samples":4000,
//   "optimizer_step":499,
//   "skipped_in_a_row":0,
//   "metrics_bytes":71230,
//   "val_loss":1.75,
//   "best_val_loss":1.75,
//   "data_fingerprint":"9f86d081",
//   "world":2,
//   "config":{"train.batch":"8","train.seed":"1337"},
//   "files":[
//   {"name":"model-00000.safetensors","size":120,"crc32c":"1c2f5a10"},
//   {"name":"model-00001.safetensors","size":120,"crc32c":"e93b0c77"}
//   ],
//   "tensors":{
//   "ln_f.weight":{"shape":[4,2],"master":[{"file":"model-00000.safetensors","key":"ln_f.weight","start":[0,0],
//       "shape":[2,2]},{"file":"model-00001.safetensors","key":"ln_f.weight","start":[2,0],"shape":[2,2]}]}
//   },
//   "crc32c":"5d0c3a8e"}
//
// (Line breaks inside a tensor's line are made up here for width, and so are the checksums.)
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoint.h"

namespace hearth {

constexpr int64_t checkpoint_format = 1;

// Every name in a folder of checkpoints.
namespace checkpoint_names {
inline constexpr const char* manifest = "manifest.json";
inline constexpr const char* tokenizer = "tokenizer.json";
inline constexpr const char* latest = "latest";
// "step-00000500"
std::string folder(int64_t step);
// The step of such a name, or -1 for any other.
int64_t step_of(const std::string& name);
// Work in progress of this process: "step-00000500.tmp.PID"; with a purpose "step-00000500.pruned.tmp.PID".
std::string temporary(int64_t step, const std::string& purpose = "");
// The PID of such a name, or -1 for any other.
int64_t pid_of_temporary(const std::string& name);
// "model-00003.safetensors", "optimizer-00003.safetensors"
std::string model(int64_t process);
std::string optimizer(int64_t process);
// The key of a piece in its file: NAME, moment1.NAME, moment2.NAME.
std::string key(CheckpointPiece::Kind kind, const std::string& name);
}  // namespace checkpoint_names

struct ManifestFile {
  std::string name;
  uint64_t size = 0;
  uint32_t crc = 0;
};

struct ManifestPiece {
  std::string file;
  std::string key;
  std::vector<int64_t> start;
  Shape shape;
};

struct ManifestTensor {
  Shape shape;
  std::array<std::vector<ManifestPiece>, 3> pieces;  // by CheckpointPiece::Kind
};

struct Manifest {
  CheckpointState state;  // without tokenizer_json, which is a file
  int64_t world = 1;
  std::vector<ManifestFile> files;
  std::map<std::string, ManifestTensor> tensors;
};

// A checkpoint of a format that this program does not know: falling back to an older one would hide it.
class UnknownFormat : public Error {
 public:
  using Error::Error;
};

// The bytes of manifest.json.
std::string manifest_text(const Manifest& manifest);
// The reverse.  Throws Error(data) naming `path` and what is wrong.  What it returns is consistent: files are
// plain names and exist in the list, pieces lie inside their tensors.
Manifest parse_manifest(std::string_view text, const fs::path& path);

// The manifest of the checkpoint in `folder`.
Manifest read_manifest(const fs::path& folder);

}  // namespace hearth
