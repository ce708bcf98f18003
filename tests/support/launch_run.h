// Short trainings of several ranks with the real executable: layouts, ranks started by hand, what is left.
#pragma once

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "support/train_run.h"

namespace hearth::testing {

// How a run is spread over ranks.  (Functions below: test suites are instantiated before objects exist.)
struct RankLayout {
  const char* name;
  int ranks;
  Words options;
};

inline RankLayout one() {
  return {"one", 1, {}};
}
inline RankLayout data2() {
  return {"data2", 2, {}};
}
inline RankLayout data3() {
  return {"data3", 3, {}};
}
inline RankLayout data2_zero() {
  return {"data2_zero", 2, {"--parallel.zero=1"}};
}
inline RankLayout data3_zero() {
  return {"data3_zero", 3, {"--parallel.zero=1", "--train.micro_batch=2"}};
}
inline RankLayout tensor2() {
  return {"tensor2", 2, {"--parallel.tensor=2"}};
}
inline RankLayout tensor2_sequence() {
  return {"tensor2_sequence",
          2,
          {"--parallel.tensor=2", "--parallel.sequence=true", "--train.micro_batch=3",
           "--parallel.check_every=2"}};
}
inline RankLayout tensor2_pipeline2_sequence() {
  return {"tensor2_pipeline2_sequence",
          4,
          {"--parallel.tensor=2", "--parallel.pipeline=2", "--parallel.sequence=true",
           "--train.micro_batch=4", "--train.recompute=block"}};
}
inline RankLayout pipeline2() {
  return {"pipeline2", 2, {"--parallel.pipeline=2", "--train.micro_batch=3"}};
}
inline RankLayout gpipe3() {
  return {"gpipe3", 3, {"--parallel.pipeline=3", "--parallel.schedule=gpipe", "--train.micro_batch=4"}};
}
inline RankLayout interleaved() {
  return {"interleaved",
          2,
          {"--parallel.pipeline=2", "--parallel.schedule=interleaved", "--parallel.virtual=2",
           "--train.micro_batch=3"}};
}
inline RankLayout tensor2_pipeline2() {
  return {
      "tensor2_pipeline2",
      4,
      {"--parallel.tensor=2", "--parallel.pipeline=2", "--train.micro_batch=4", "--train.recompute=block"}};
}
inline RankLayout tensor2_data2() {
  return {"tensor2_data2", 4, {"--parallel.tensor=2"}};
}
inline RankLayout tensor2_data2_zero() {
  return {"tensor2_data2_zero", 4, {"--parallel.tensor=2", "--parallel.zero=1"}};
}
inline RankLayout pipeline2_data2_zero() {
  return {"pipeline2_data2_zero", 4, {"--parallel.pipeline=2", "--parallel.zero=1", "--train.micro_batch=2"}};
}

// `hearth train` in a layout, under `hearth launch` unless it is one rank: 7 steps of 12 sequences, a model
// of 4 layers with dropout, gradients that are clipped.
inline Words layout_command(const RankLayout& layout, const fs::path& run, const Words& more = {}) {
  Words words = train_command(run, {"--train.steps=7", "--train.batch=12", "--model.layers=4",
                                    "--model.dropout=0.1", "--eval.every=3", "--optimizer.warmup=2"});
  words.insert(words.end(), layout.options.begin(), layout.options.end());
  words.insert(words.end(), more.begin(), more.end());
  if (layout.ranks > 1) words.insert(words.begin() + 1, {"launch", "-n", std::to_string(layout.ranks)});
  return words;
}

inline Outcome layout_run(const RankLayout& layout, const fs::path& run, const Words& more = {}) {
  return run_program(layout_command(layout, run, more));
}

// Every tensor file of a checkpoint, by name.
inline std::map<std::string, std::string> checkpoint_files(const fs::path& run, int step) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(checkpoint_of(run, step)))
    if (entry.path().extension() == ".safetensors")
      files[entry.path().filename().string()] = read_file(entry.path());
  return files;
}

// The launcher's children, by what RANK says in their environment.
inline std::map<int, pid_t> ranks_of(pid_t launcher) {
  std::map<int, pid_t> ranks;
  const std::string task = std::to_string(launcher);
  std::ifstream children("/proc/" + task + "/task/" + task + "/children");
  for (pid_t pid; children >> pid;) {
    std::ifstream environment("/proc/" + std::to_string(pid) + "/environ");
    for (std::string entry; std::getline(environment, entry, '\0');)
      if (entry.starts_with("RANK=")) ranks[std::stoi(entry.substr(5))] = pid;
  }
  return ranks;
}

// A variable in the environment of a process; empty when it has none.
inline std::string variable_of(pid_t pid, const std::string& name) {
  std::ifstream environment("/proc/" + std::to_string(pid) + "/environ");
  for (std::string entry; std::getline(environment, entry, '\0');)
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  return "";
}

// Processes with this text in their command line (zombies have none).
inline int processes_with(const std::string& text) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    count += line.find(text) != std::string::npos;
  }
  return count;
}

inline std::string last_line(const std::string& output) {
  const size_t end = output.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t before = output.find_last_of('\n', end);
  return output.substr(before + 1, end - before);  // npos + 1 is 0
}

// Rank `rank` of `world`, started without a launcher.
inline Words by_hand(int rank, int world, int port, const Words& command,
                     const std::string& host = "127.0.0.1") {
  Words words{"env",
              "RANK=" + std::to_string(rank),
              "WORLD_SIZE=" + std::to_string(world),
              "LOCAL_RANK=" + std::to_string(rank),
              "MASTER_ADDR=" + host,
              "MASTER_PORT=" + std::to_string(port),
              "HEARTH_TOKEN=test"};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

// All commands at once.
inline std::vector<Outcome> run_together(const std::vector<Words>& commands, double seconds = 30) {
  std::vector<std::unique_ptr<Process>> processes;
  for (const Words& command : commands)
    processes.push_back(std::make_unique<Process>(command));
  std::vector<Outcome> outcomes;
  for (const auto& process : processes)
    outcomes.push_back(process->finish(seconds));
  return outcomes;
}

}  // namespace hearth::testing
