// Checkpoints: named global tensors in RUN/checkpoints/step-00000500/.
//
//   model-00000.safetensors      pieces of the master weights, key = parameter name
//   optimizer-00000.safetensors  pieces of the moments, keys "moment1.NAME" and "moment2.NAME"
//   tokenizer.json               when the run has a tokenizer
//   manifest.json                written last: format, step, consumed samples, config, tensors, sizes and
//                                CRC32C of the files; checkpoint_manifest.h is its definition
//
// A piece is a rectangle of a global tensor: {file, key, start, shape}.  One process writes one piece per
// tensor; any process reads any rectangle, whatever pieces hold it.  Tensor files hold no time, host or path,
// so that equal states are equal bytes.
//
// Write protocol: (1) room for the checkpoint is checked (2) everything goes into step-N.tmp.PID (3) each
// file is written, fsynced, closed (4) the manifest last (5) fsync of the folder (6) rename to step-N (7)
// fsync of the parent (8) `latest` is replaced atomically (9) old checkpoints are pruned, never the newest
// valid one nor the best (10) leftovers of dead processes are deleted at start.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "device/device.h"
#include "tensor/tensor.h"
#include "train/config.h"

namespace hearth {

// What a checkpoint says besides tensors.
struct CheckpointState {
  int64_t step = 0;              // steps done
  int64_t consumed_samples = 0;  // the only data state
  int64_t optimizer_step = 0;    // AdamW's t: steps that were not skipped
  int64_t skipped_in_a_row = 0;
  std::optional<double> val_loss;       // of the last evaluation, if it was at this step
  std::optional<double> best_val_loss;  // of the run so far
  uint64_t metrics_bytes = 0;           // length of metrics.jsonl up to and including this step
  std::string data_fingerprint;
  std::string tokenizer_json;  // empty: none
  ConfigValues config;
};

// A rectangle of a global tensor in device memory.
struct CheckpointPiece {
  enum class Kind : uint8_t { master, moment1, moment2 };
  Kind kind = Kind::master;
  std::string name;  // parameter name
  Shape global_shape;
  std::vector<int64_t> start;  // of the rectangle, one number per dimension
  Tensor local;                // contiguous
};

// How the ranks of a run write one checkpoint together.  Both calls are made by all ranks, in the same order.
struct CheckpointTeam {
  int rank = 0;
  int world = 1;
  // Rank 0 gets what every rank says, in rank order; the others get nothing.
  std::function<std::vector<std::string>(const std::string&)> gather;
  // Every rank gets what rank 0 says.
  std::function<std::string(const std::string&)> broadcast;
};

// Writes RUN/checkpoints/step-NNNNNNNN by the protocol above and returns its path.  Pieces are streamed
// through a bounded host buffer.  If that checkpoint exists, is valid and says the same, nothing is written;
// if it is damaged or says something else (the run was resumed from an older one), it is replaced in one
// step. On failure nothing is left of the new checkpoint, older ones are untouched, and Error(data) gives the
// path, the system's reason, and the bytes needed and free.
//
// With a team every rank calls it with its own pieces and writes files of its own; rank 0 checks the room,
// writes the manifest and renames.  All return, or all throw the first rank's error.
fs::path write_checkpoint(const fs::path& folder, const CheckpointState& state,
                          std::span<const CheckpointPiece> pieces, Device& device,
                          const CheckpointTeam& team = {});

// Deletes all but the newest `keep` checkpoints and the one with the lowest val_loss.  Counts from the one
// that `latest` names, which was just written, downwards, and counts only checkpoints whose manifest and file
// sizes are right: what is newer than `latest` (damaged, or the future of a run that went back) saves nobody
// and is left alone.  So the last valid one is never deleted.  Error(data) when one cannot be deleted.
void prune_checkpoints(const fs::path& folder, int64_t keep);
// Deletes what writers that no longer run, or this process, left unfinished.  Only for the holder of the run
// directory's lock.
void remove_leftovers(const fs::path& folder);

// An opened checkpoint.  The constructor reads the manifest and compares every file's size and CRC32C with
// it; Error(data) names the file and what differs.
class CheckpointReader {
 public:
  explicit CheckpointReader(const fs::path& checkpoint);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;

  const CheckpointState& state() const;
  const fs::path& path() const;
  // Names of the master tensors, sorted, and their global shapes.
  std::vector<std::pair<std::string, Shape>> tensors() const;
  bool has(CheckpointPiece::Kind kind, const std::string& name) const;
  // Fills `piece.local` (converting nothing: types must match) from whatever pieces cover its rectangle.
  // Error(data) names the tensor and what differs, or the part of it that no piece has.
  void read(const CheckpointPiece& piece, Device& device) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Checkpoint folders in `folder` (RUN/checkpoints), newest step first; unfinished ones are not listed.
std::vector<fs::path> list_checkpoints(const fs::path& folder);

// The newest checkpoint in `folder` that is whole.  For each newer one that is not, `report` is called with a
// sentence.  Nothing there: nullopt.  A checkpoint of a newer format is an Error(data): an older one must not
// be taken silently.
std::optional<CheckpointReader> open_newest_checkpoint(const fs::path& folder,
                                                       const std::function<void(const std::string&)>& report);
// What a user may name: a checkpoint folder, a run folder, or RUN/checkpoints.  Error(data) says what was
// found.  A damaged newest checkpoint is an error that names the newest whole one.
CheckpointReader open_checkpoint(const fs::path& path);

// Writes tensors (device memory, any type) as one plain safetensors file, atomically; for
// debug.dump_gradients.
void write_safetensors(const fs::path& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       Device& device);

}  // namespace hearth
