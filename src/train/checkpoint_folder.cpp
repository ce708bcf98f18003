// The folder of a run's checkpoints: listing, the newest whole one, pruning, and leftovers.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "train/checkpoint.h"
#include "train/checkpoint_manifest.h"

namespace hearth {
namespace {

int64_t step_of(const fs::path& checkpoint) {
  return checkpoint_names::step_of(checkpoint.filename());
}

// The names in a folder, or none where it cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// The manifest, when it and the sizes of all files are right.  Contents are not read: that is for opening.
std::optional<Manifest> manifest_if_whole(const fs::path& checkpoint) {
  try {
    Manifest manifest = read_manifest(checkpoint);
    for (const ManifestFile& file : manifest.files) {
      std::error_code error;
      if (fs::file_size(checkpoint / file.name, error) != file.size || error) return std::nullopt;
    }
    return manifest;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The step that `latest` names; without a usable `latest` the newest checkpoint counts.
int64_t latest_step(const fs::path& folder) {
  try {
    std::string name = read_file(folder / checkpoint_names::latest);
    if (name.ends_with('\n')) name.pop_back();
    const int64_t step = checkpoint_names::step_of(name);
    if (step >= 0 && manifest_if_whole(folder / name)) return step;
  } catch (const Error&) {
  }
  return INT64_MAX;
}

void remove_checkpoint(const fs::path& folder, int64_t step) {
  // First out of sight in one step, so that a crash does not leave half a checkpoint.
  const fs::path checkpoint = folder / checkpoint_names::folder(step);
  const fs::path aside = folder / checkpoint_names::temporary(step, "pruned");
  std::error_code error;
  fs::remove_all(aside, error);
  fs::rename(checkpoint, aside, error);
  if (!error) fs::remove_all(aside, error);
  if (error) fail_data("cannot delete the old checkpoint ", checkpoint.string(), ": ", error.message());
}

bool runs(int64_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
}

// What a folder without checkpoints holds, for the error message.
std::string contents(const fs::path& folder) {
  const std::vector<std::string> names = names_in(folder);
  if (names.empty()) return "it is empty";
  std::string out = "it holds ";
  const size_t shown = std::min<size_t>(names.size(), 5);
  for (size_t i = 0; i < shown; ++i)
    out += (i > 0 ? ", " : "") + hearth::quoted(names[i]);
  return names.size() > shown ? text(out, " and ", names.size() - shown, " more") : out;
}

// The newest checkpoint of `folder`, which must be whole.
CheckpointReader open_newest_or_fail(const fs::path& folder) {
  std::string damage;
  std::optional<CheckpointReader> reader = open_newest_checkpoint(folder, [&](const std::string& sentence) {
    if (damage.empty()) damage = sentence;
  });
  if (damage.empty()) return std::move(*reader);
  fail_data(damage, reader ? text("; the newest whole checkpoint is ", reader->path().string(), ", name that")
                           : text("; there is no whole checkpoint in ", folder.string()));
}

}  // namespace

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> checkpoints;
  std::error_code error;
  for (const std::string& name : names_in(folder))
    if (checkpoint_names::step_of(name) >= 0 && fs::is_directory(folder / name, error))
      checkpoints.push_back(folder / name);
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const fs::path& a, const fs::path& b) { return step_of(a) > step_of(b); });
  return checkpoints;
}

void prune_checkpoints(const fs::path& folder, int64_t keep) {
  const int64_t latest = latest_step(folder);
  std::vector<int64_t> candidates;  // newest first, from `latest` down
  std::set<int64_t> kept;
  std::optional<double> best_loss;
  int64_t best_step = -1;
  for (const fs::path& checkpoint : list_checkpoints(folder)) {
    const int64_t step = step_of(checkpoint);
    if (step > latest) continue;
    candidates.push_back(step);
    const std::optional<Manifest> manifest = manifest_if_whole(checkpoint);
    if (!manifest) continue;
    if (std::ssize(kept) < std::max<int64_t>(keep, 1)) kept.insert(step);
    const std::optional<double> loss = manifest->state.val_loss;
    if (!loss || (best_loss && *loss >= *best_loss)) continue;
    best_loss = loss;
    best_step = step;
  }
  if (kept.empty()) return;
  // A damaged one that is newer than the oldest kept stays too: somebody may want to look at it.
  const int64_t oldest_kept = *kept.begin();
  for (const int64_t step : candidates)
    if (step < oldest_kept && step != best_step) remove_checkpoint(folder, step);
}

void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  for (const std::string& name : names_in(folder)) {
    const int64_t pid = checkpoint_names::pid_of_temporary(name);
    // This process writes nothing yet, so that a leftover with its id is of another one that had the same id,
    // as in containers.
    if (pid >= 0 && (pid == ::getpid() || !runs(pid))) fs::remove_all(folder / name, error);
  }
  fs::remove(folder / text(checkpoint_names::latest, ".tmp"), error);
}

std::optional<CheckpointReader> open_newest_checkpoint(
    const fs::path& folder, const std::function<void(const std::string&)>& report) {
  for (const fs::path& checkpoint : list_checkpoints(folder)) {
    try {
      return CheckpointReader(checkpoint);
    } catch (const UnknownFormat&) {
      throw;
    } catch (const Error& error) {
      report(text("checkpoint ", checkpoint.filename().string(), " cannot be used: ", error.what()));
    }
  }
  return std::nullopt;
}

CheckpointReader open_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error))
    fail_data("there is no checkpoint ", path.string(), "; name a checkpoint folder or a run directory");
  if (!fs::is_directory(path, error))
    fail_data(path.string(), " is a file; name a checkpoint folder or a run directory");
  if (fs::exists(path / checkpoint_names::manifest, error) || step_of(fs::absolute(path)) >= 0)
    return CheckpointReader(path);
  for (const fs::path& folder : {path / "checkpoints", path})
    if (!list_checkpoints(folder).empty()) return open_newest_or_fail(folder);
  fail_data("there is no checkpoint in ", path.string(), ": ", contents(path),
            "; name a checkpoint folder or a run directory");
}

}  // namespace hearth
