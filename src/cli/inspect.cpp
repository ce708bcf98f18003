// `hearth inspect`: verifies what Hearth reads and writes, and says what is in it.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/files.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_source.h"
#include "cli/options.h"
#include "data/shards.h"
#include "data/tokenizer.h"
#include "model/parameters.h"
#include "train/checkpoint.h"
#include "train/safetensors.h"

namespace hearth {
namespace {

CommandSpec spec() {
  return {.name = "inspect",
          .about =
              "Verifies and describes a checkpoint, a run directory, a safetensors file, a token shard or a "
              "tokenizer file.",
          .positional = "FILE_OR_DIR",
          .options = {{"vocab", "N", "0",
                       "for a token shard: every id must be below N; 0 = what its tokenizer or "
                       "its format says"}}};
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
}

// --- tensors ---

struct Row {
  std::string name, type;
  Shape shape;
};

void print_table(const std::vector<Row>& rows) {
  size_t width = 0;
  for (const Row& row : rows)
    width = std::max(width, row.name.size());
  for (const Row& row : rows)
    std::printf("  %-*s  %-4s %-20s %s\n", static_cast<int>(width), row.name.c_str(), row.type.c_str(),
                to_string(row.shape).c_str(), with_commas(row.shape.elements()).c_str());
}

ExitCode inspect_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  std::vector<Row> rows;
  int64_t elements = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    rows.push_back({entry.key, std::string(name_of(entry.dtype)), entry.shape});
    elements += entry.shape.elements();
  }
  say(text(path.string(), ": safetensors file, valid; ", rows.size(), " tensors, ", with_commas(elements),
           " elements, ", human_bytes(fs::file_size(path))));
  print_table(rows);
  return ExitCode::done;
}

// --- checkpoints and runs ---

void print_model(const ConfigValues& values, const std::string& where) {
  const Settings settings = settings_from(values, where);
  const ModelConfig& m = settings.run.model;
  say(text("  model: ", m.layers, " layers, ", m.heads, " heads, ", m.channels, " channels, context ",
           m.context, ", vocabulary ", m.vocab, "; ", with_commas(parameter_count(m)), " parameters"));
  std::string changed;
  for (const Key& key : schema()) {
    const std::string literal = literal_of(key, settings);
    if (literal != default_literal(key)) changed += "\n    " + key.name + " = " + literal;
  }
  say("  configuration, where it differs from the defaults:" + changed);
}

ExitCode describe_checkpoint(const CheckpointReader& checkpoint) {
  const CheckpointState& state = checkpoint.state();
  say(text(checkpoint.path().string(), ": checkpoint, whole: every size and checksum is right"));
  say(text("  step ", with_commas(state.step), ", ", with_commas(state.consumed_samples),
           " samples consumed, ", with_commas(state.optimizer_step), " optimizer steps"));
  if (state.val_loss) say(text("  val_loss ", nine_digits(*state.val_loss), " at this step"));
  if (state.best_val_loss) say(text("  val_loss ", nine_digits(*state.best_val_loss), " at the run's best"));
  if (state.tokenizer_json.empty()) {
    say("  tokenizer: none");
  } else {
    const auto tokenizer =
        load_tokenizer(state.tokenizer_json, (checkpoint.path() / "tokenizer.json").string());
    say(text("  tokenizer: ", tokenizer->kind(), ", ", with_commas(tokenizer->vocab()), " ids"));
  }
  say("  data fingerprint: " + state.data_fingerprint);
  print_model(state.config, checkpoint.path().string());

  using Kind = CheckpointPiece::Kind;
  std::vector<Row> rows;
  bool moments = true;
  for (const auto& [name, shape] : checkpoint.tensors()) {
    rows.push_back({name, "", shape});
    moments = moments && checkpoint.has(Kind::moment1, name) && checkpoint.has(Kind::moment2, name);
  }
  say(text("  ", rows.size(), " master tensors",
           moments ? ", each with its two AdamW moments" : ", no moments"));
  print_table(rows);
  return ExitCode::done;
}

// A damaged checkpoint makes the run's inspection fail, though training would fall back on another one.
ExitCode inspect_run(const fs::path& path, const std::vector<fs::path>& checkpoints) {
  say(text(path.string(), ": run directory with ", checkpoints.size(), " checkpoint",
           checkpoints.size() == 1 ? "" : "s", ", newest first"));
  std::string damage;
  for (const fs::path& folder : checkpoints) {
    try {
      const CheckpointReader checkpoint(folder);
      const auto loss = checkpoint.state().val_loss;
      say(text("  ", folder.filename().string(), "  whole", loss ? "  val_loss " + nine_digits(*loss) : ""));
    } catch (const Error& error) {
      say(text("  ", folder.filename().string(), "  DAMAGED"));
      if (damage.empty()) damage = error.what();
    }
  }
  const auto newest = open_newest_checkpoint(path / "checkpoints", [](const std::string&) {});
  if (newest) describe_checkpoint(*newest);
  if (!damage.empty()) fail_data(damage);
  return ExitCode::done;
}

ExitCode inspect_folder(const fs::path& path) {
  if (fs::exists(path / "manifest.json")) return describe_checkpoint(CheckpointReader(path));
  // RUN/checkpoints stands for its run.
  fs::path run = fs::exists(path / "checkpoints") ? path : fs::path();
  if (run.empty() && fs::canonical(path).filename() == "checkpoints") run = fs::canonical(path).parent_path();
  if (!run.empty()) {
    const std::vector<fs::path> checkpoints = list_checkpoints(run / "checkpoints");
    if (checkpoints.empty()) fail_data(path.string(), ": a run directory without a finished checkpoint");
    return inspect_run(run, checkpoints);
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  std::string found;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 5); ++i)
    found += (i ? ", " : "") + quoted(names[i]);
  fail_data(path.string(),
            ": expected a checkpoint (with manifest.json) or a run directory (with checkpoints/), "
            "found ",
            names.empty() ? "an empty folder" : found, names.size() > 5 ? ", ..." : "");
}

// --- tokens and tokenizers ---

std::unique_ptr<Tokenizer> tokenizer_beside(const fs::path& path) {
  const fs::path file = path.parent_path() / "tokenizer.json";
  return fs::exists(file) ? load_tokenizer_file(file) : nullptr;
}

ExitCode inspect_tokens(const fs::path& path, int64_t vocab) {
  const auto tokenizer = tokenizer_beside(path);
  if (vocab == 0) vocab = tokenizer ? tokenizer->vocab() : implied_vocab(path);
  const auto shard = open_token_file(path, vocab);
  const std::string limit =
      vocab ? text("every id is below ", vocab) : "no vocabulary is known: ids not checked";
  say(text(path.string(), ": token shard, valid; ", with_commas(shard->size()), " tokens, ", limit));
  int32_t largest = 0;
  std::vector<int32_t> block(1 << 20);
  for (int64_t begin = 0; begin < shard->size(); begin += std::ssize(block)) {
    const auto ids =
        std::span(block).first(static_cast<size_t>(std::min(std::ssize(block), shard->size() - begin)));
    shard->read(begin, ids);
    largest = std::max(largest, *std::max_element(ids.begin(), ids.end()));
  }
  std::vector<int32_t> first(static_cast<size_t>(std::min<int64_t>(16, shard->size())));
  shard->read(0, first);
  std::string list;
  for (const int32_t id : first)
    list += text(" ", id);
  say(text("  largest id ", largest));
  say("  first tokens:" + list);
  if (tokenizer)
    say(text("  as text: ", quoted(tokenizer->decode(first), 200), " (", tokenizer->kind(), ")"));
  return ExitCode::done;
}

ExitCode inspect_tokenizer(const fs::path& path) {
  const auto tokenizer = load_tokenizer_file(path);
  say(text(path.string(), ": tokenizer, valid; ", tokenizer->kind(), ", ", with_commas(tokenizer->vocab()),
           " ids"));
  if (const auto id = tokenizer->end_of_text()) say(text("  end of text: ", *id));
  std::string list;
  const auto shown = static_cast<int32_t>(std::min<int64_t>(16, tokenizer->vocab()));
  for (int32_t id = 0; id < shown; ++id)
    list += " " + quoted(tokenizer->decode(id));
  say("  first ids:" + list);
  say("  fingerprint: " + tokenizer->fingerprint());
  return ExitCode::done;
}

// --- what is it? ---

bool looks_like_safetensors(const fs::path& path, std::string_view head) {
  if (path.extension() == ".safetensors") return true;
  uint64_t header = 0;
  if (head.size() < 9) return false;
  std::memcpy(&header, head.data(), sizeof header);
  return header <= 100'000'000 && head[8] == '{';
}

bool looks_like_tokenizer(const fs::path& path, std::string_view head) {
  const std::string extension = path.extension().string();
  const bool llmc = head.starts_with(std::string_view("\xc8\xd7\x34\x01", 4));
  return llmc || extension == ".json" || extension == ".bpe" || path.filename() == "merges.txt" ||
         head.starts_with("#version");
}

ExitCode inspect_file(const fs::path& path, int64_t vocab) {
  const MappedFile file(path);
  const std::string_view content = file.chars();
  if (content.empty()) fail_data(path.string(), " is empty (0 bytes); was a download or a copy cut off?");
  const std::string_view head = content.substr(0, 16);
  if (path.filename() == "manifest.json")
    return inspect_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
  if (looks_like_safetensors(path, head)) return inspect_safetensors(path);
  if (looks_like_tokenizer(path, head)) return inspect_tokenizer(path);
  if (is_token_file(path)) return inspect_tokens(path, vocab);
  fail_data(path.string(), " begins with ", quoted(head),
            "; expected a safetensors file, a token shard or a tokenizer file");
}

}  // namespace

ExitCode run_inspect(const CommandLine& line) {
  const Arguments arguments(spec(), line.arguments);
  if (arguments.help()) {
    std::fputs(help_text(spec()).c_str(), stdout);
    return ExitCode::done;
  }
  const fs::path path = arguments.positional()[0];
  const int64_t vocab = arguments.whole("vocab", 0, INT32_MAX);
  std::error_code none;
  if (!fs::exists(path, none)) fail_data("there is no file or folder ", path.string());
  if (fs::is_directory(path)) return inspect_folder(path);
  if (!fs::is_regular_file(path)) fail_data(path.string(), " is neither a file nor a folder");
  return inspect_file(path, vocab);
}

}  // namespace hearth
