#include "train/resume.h"

#include "base/text.h"
#include "data/tokenizer.h"
#include "train/run_directory.h"

namespace hearth {

namespace {

// Going back to an older checkpoint inside its own run would leave the newer ones there, for a later "auto"
// to take.
void refuse_abandoned_future(const fs::path& checkpoint, const fs::path& run) {
  const std::vector<fs::path> own = list_checkpoints(run / "checkpoints");
  if (own.empty() ||
      fs::weakly_canonical(checkpoint).parent_path() != fs::weakly_canonical(own[0]).parent_path())
    return;
  if (fs::weakly_canonical(checkpoint) != fs::weakly_canonical(own[0]))
    fail_usage("checkpoint.resume = ", checkpoint.string(), " is not the newest checkpoint of ", run.string(),
               " (", own[0].filename().string(), " is); choose another run.dir, or delete the newer ones");
}

}  // namespace

std::optional<CheckpointReader> find_resume_source(const RunConfig& config, const fs::path& run,
                                                   const std::function<void(const std::string&)>& report) {
  const std::string& resume = config.checkpoint.resume;
  if (resume == "none") {
    if (RunDirectory::used(run))
      fail_usage("the run directory ", run.string(),
                 " already holds a run and checkpoint.resume is \"none\"; choose ",
                 "another run.dir, delete it, or use checkpoint.resume = \"auto\"");
    return std::nullopt;
  }
  if (resume != "auto") {
    CheckpointReader found = open_checkpoint(resume);
    refuse_abandoned_future(found.path(), run);
    return found;
  }
  return open_newest_checkpoint(run / "checkpoints", report);
}

namespace {

// Keys whose change makes another model: the checkpoint's tensors would not fit or would mean something else.
constexpr const char* model_keys[] = {"layers", "heads", "kv_heads", "channels", "ffn",        "context",
                                      "vocab",  "bias",  "tied",     "norm",     "activation", "position"};
// Keys that may change, but not silently.
constexpr const char* course_keys[] = {
    "train.batch",     "train.seed",       "train.precision",        "model.dropout",
    "optimizer.lr",    "optimizer.min_lr", "optimizer.warmup",       "optimizer.schedule",
    "optimizer.beta1", "optimizer.beta2",  "optimizer.weight_decay", "optimizer.clip"};

const std::string& value_of(const ConfigValues& values, const std::string& key) {
  static const std::string unknown = "(not set)";
  const auto it = values.find(key);
  return it == values.end() ? unknown : it->second;
}

}  // namespace

std::vector<std::string> compare_with_checkpoint(const CheckpointReader& checkpoint, const RunConfig& config,
                                                 const ConfigValues& values,
                                                 const std::string& data_fingerprint,
                                                 const std::string& tokenizer_fingerprint) {
  const CheckpointState& state = checkpoint.state();
  const std::string where = checkpoint.path().string();
  for (const char* name : model_keys) {
    const std::string key = text("model.", name);
    const std::string& theirs = value_of(state.config, key);
    const std::string& ours = value_of(values, key);
    if (theirs != ours)
      fail_usage(where, " has ", key, " = ", theirs, ", this configuration asks for ", ours,
                 "; use the same model, or another run.dir for a new one");
  }
  std::vector<std::string> notes;
  if (!state.tokenizer_json.empty() && !tokenizer_fingerprint.empty() &&
      sha256_hex(state.tokenizer_json) != tokenizer_fingerprint)
    fail_data(
        where,
        " was trained with another tokenizer than the data has; prepare the data with the same tokenizer, ",
        "or use another run.dir for a new run");
  if (state.data_fingerprint != data_fingerprint) {
    if (!config.checkpoint.allow_data_change)
      fail_data(where, " was trained on other data (fingerprint ", state.data_fingerprint.substr(0, 12),
                ", this run's is ", data_fingerprint.substr(0, 12),
                "); restore the data, or set checkpoint.allow_data_change = true to go on with it");
    notes.push_back(
        "the data is not what the checkpoint was trained on (checkpoint.allow_data_change is set)");
  }
  for (const char* key : course_keys)
    if (value_of(state.config, key) != value_of(values, key))
      notes.push_back(text(key, " was ", value_of(state.config, key), " in the checkpoint and is ",
                           value_of(values, key), " now"));
  return notes;
}

}  // namespace hearth
