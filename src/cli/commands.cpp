// The table of subcommands, dispatch, and what every command shares: help, version, how failures end.
#include "cli/commands.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/text.h"
#include "base/version.h"
#include "device/device.h"

namespace hearth {
namespace {

std::string usage() {
  std::string out = "hearth " + std::string(hearth_version) + ": trains GPTs from scratch\n\nUsage:\n";
  for (const Command& command : commands())
    out += "  hearth " + command.name + " " + command.usage + "\n      " + command.help + "\n";
  out +=
      "  hearth COMMAND --help\n"
      "  hearth --version\n"
      "\n"
      "A first run:     hearth train configs/tiny.toml\n"
      "Going on later:  the same command again; a run resumes from its newest checkpoint\n"
      "Exit codes:      0 done, 2 usage or configuration, 65 data or file, 70 numerical stop,\n"
      "                 71 another rank, 72 device, 75 stopped early with a good checkpoint, 130 and 143 "
      "signals\n";
  return out;
}

[[noreturn]] void refuse_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands())
    names.push_back(command.name);
  const std::string close = nearest(name, names);
  fail_usage("there is no command ", quoted(name),
             close.empty() ? "; `hearth --help` lists them" : text("; did you mean hearth ", close, "?"));
}

// Text that only looks written is a failure: the disk behind a redirection may be full.
void finish_output() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && !std::ferror(stdout)) return;
  fail_data("standard output could not be written", errno ? text(": ", std::strerror(errno)) : "");
}

ExitCode dispatch(const std::string& program, const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(usage().c_str(), stderr);
    return ExitCode::usage;
  }
  const std::string& name = arguments[0];
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(usage().c_str(), stdout);
    return ExitCode::done;
  }
  if (name == "--version") {
    std::printf("hearth %s, %s\n", hearth_version, cuda_build().c_str());
    return ExitCode::done;
  }
  for (const Command& command : commands())
    if (command.name == name) return command.run({program, {arguments.begin() + 1, arguments.end()}});
  refuse_command(name);
}

int failed(ExitCode code, const char* sentence) {
  std::fflush(stdout);
  std::fprintf(stderr, "hearth: %s\n", sentence);
  return static_cast<int>(code);
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"train", "CONFIG.toml [--section.key=value ...]", "train a GPT, or resume its training", run_train},
      {"launch", "-n N COMMAND ...", "run a command as N ranks: data, tensor and pipeline parallel training",
       run_launch},
      {"plan", "CONFIG.toml [--ranks N] [--section.key=value ...]",
       "memory, traffic, schedule and time of a run in any layout, without a device", run_plan},
      {"check", "layouts [-n N]", "does every layout of up to N ranks train the same model?", run_check},
      {"generate", "CHECKPOINT --prompt TEXT [OPTIONS]", "write text with a trained GPT", run_generate},
      {"eval", "CHECKPOINT [--data FILE] [OPTIONS]", "loss, perplexity and bits per byte", run_eval},
      {"prepare", "INPUT... --tokenizer byte|char|gpt2 --out DIR [OPTIONS]", "turn text into token shards",
       run_prepare},
      {"inspect", "FILE_OR_DIR", "verify and describe a checkpoint, run, shard or tokenizer", run_inspect},
  };
  return table;
}

int run_hearth(const std::string& program, const std::vector<std::string>& arguments) {
  try {
    const ExitCode code = dispatch(program, arguments);
    if (code == ExitCode::done) finish_output();
    return static_cast<int>(code);
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ExitCode::device,
                  "out of memory; a smaller train.micro_batch or model.context needs less, and so does "
                  "train.recompute = \"block\"");
  } catch (const std::exception& error) {
    return failed(ExitCode{1}, text("internal error, please report it: ", error.what()).c_str());
  }
}

}  // namespace hearth
