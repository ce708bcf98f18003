// The subcommands: one file each, listed in one table that main() and the help walk.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace hearth {

struct CommandLine {
  std::string program;                 // as it was called: "build/hearth"
  std::vector<std::string> arguments;  // behind the subcommand
};

struct Command {
  std::string name;
  std::string usage;  // its arguments: "CONFIG.toml [--section.key=value ...]"
  std::string help;   // one line
  ExitCode (*run)(const CommandLine&);
};

const std::vector<Command>& commands();

// The whole program: dispatch, messages, exit code.
int run_hearth(const std::string& program, const std::vector<std::string>& arguments);

ExitCode run_train(const CommandLine& line);
ExitCode run_launch(const CommandLine& line);
ExitCode run_plan(const CommandLine& line);
ExitCode run_check(const CommandLine& line);
ExitCode run_generate(const CommandLine& line);
ExitCode run_eval(const CommandLine& line);
ExitCode run_prepare(const CommandLine& line);
ExitCode run_inspect(const CommandLine& line);

}  // namespace hearth
