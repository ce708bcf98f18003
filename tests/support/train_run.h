// Short trainings with the real executable, and what they leave behind.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace hearth::testing {

using Words = std::vector<std::string>;

// `hearth train configs/tiny.toml` into `run`: 12 steps of a small model unless `more` says otherwise.
inline Words train_command(const fs::path& run, const Words& more = {}) {
  Words words = hearth({"train", "configs/tiny.toml", "--run.dir=" + run.string(), "--train.steps=12",
                        "--train.precision=fp32", "--model.layers=2", "--model.channels=32",
                        "--model.context=32", "--eval.every=4", "--eval.tokens=512", "--sample.every=0",
                        "--checkpoint.every=4", "--log.every=1"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline Outcome train_run(const fs::path& run, const Words& more = {}) {
  return run_program(train_command(run, more));
}

// The objects of metrics.jsonl with this event.  Timing columns are removed,
// so that two runs can be compared.
inline std::vector<nlohmann::json> metrics(const fs::path& run, const std::string& event) {
  std::vector<nlohmann::json> found;
  const std::string content = read_file(run / "metrics.jsonl");
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = content.find('\n', begin);
    nlohmann::json line = nlohmann::json::parse(content.substr(begin, end - begin));
    begin = end + 1;
    if (line.at("event") != event) continue;
    for (const char* timing : {"ms", "tokens_per_second", "mfu"})
      line.erase(timing);
    found.push_back(line);
  }
  return found;
}

inline fs::path checkpoint_of(const fs::path& run, int step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08d", step);
  return run / "checkpoints" / name;
}

// The tensor files of a checkpoint: equal states are equal bytes.
inline std::string checkpoint_bytes(const fs::path& run, int step) {
  const fs::path folder = checkpoint_of(run, step);
  return read_file(folder / "model-00000.safetensors") + read_file(folder / "optimizer-00000.safetensors");
}

}  // namespace hearth::testing
