// `hearth train`: a configuration file and overrides to a RunConfig, then train/trainer.h.
#include "train/trainer.h"

#include <csignal>
#include <cstdio>

#include "base/files.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_check.h"
#include "cli/config_source.h"
#include "cli/shell.h"

namespace hearth {
namespace {

const char usage[] =
    "Usage:\n"
    "  hearth train CONFIG.toml [--section.key=value ...]\n"
    "\n"
    "Trains the GPT that CONFIG.toml describes into a run directory (runs/NAME).  A run that was stopped, "
    "by\n"
    "Ctrl-C too, goes on from its newest checkpoint when the same command is given again.\n"
    "\n"
    "  --print-config  print every effective value as TOML and stop; without CONFIG.toml: all keys with "
    "their\n"
    "                  defaults and descriptions\n"
    "  -h, --help      this text\n"
    "\n"
    "Keys, as --section.key=value here or `key = value` under [section] in the file, with their defaults:\n";

struct Request {
  bool help = false;
  bool print_config = false;
  std::string file;
  std::vector<Assignment> overrides;
  std::vector<std::string> override_arguments;  // in the form --key=value, for the resume command
};

[[noreturn]] void refuse_option(const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  const std::string close = nearest(name, {"--help", "--print-config"});
  if (!close.empty())
    fail_usage("hearth train: unknown option ", quoted(argument), "; did you mean ", close, "?");
  const std::string key = nearest_key(name.substr(
      name.find_first_not_of('-') == std::string::npos ? name.size() : name.find_first_not_of('-')));
  fail_usage("hearth train: unknown option ", quoted(argument),
             key.empty() ? "; see hearth train --help" : text("; did you mean --", key, "?"));
}

void read_one_override(const std::vector<std::string>& arguments, size_t& at, Request& request) {
  const size_t first = at;
  request.overrides.push_back(read_override(arguments, at));
  std::string argument = arguments[first];
  if (at - first == 2) argument += "=" + arguments[first + 1];
  request.override_arguments.push_back(argument);
}

Request read_request(const std::vector<std::string>& arguments) {
  Request request;
  size_t at = 0;
  while (at < arguments.size()) {
    const std::string& argument = arguments[at];
    if (is_override(argument)) {
      read_one_override(arguments, at, request);
      continue;
    }
    ++at;
    if (argument == "--help" || argument == "-h")
      request.help = true;
    else if (argument == "--print-config")
      request.print_config = true;
    else if (argument.starts_with("-"))
      refuse_option(argument);
    else if (!request.file.empty())
      fail_usage("hearth train takes one CONFIG.toml, but a second argument was given: ", quoted(argument));
    else
      request.file = argument;
  }
  return request;
}

// Fills in what depends on the file's name.
void resolve_names(Settings& settings, const std::string& file) {
  RunInfo& run = settings.run.run;
  if (run.name.empty()) run.name = fs::path(file).stem().string();
  if (run.dir.empty()) run.dir = "runs/" + run.name;
}

// The same command, except that it must go on from the newest checkpoint.
std::string resume_command(const CommandLine& line, const Request& request, const Settings& file_settings) {
  std::string command = shell_quoted(line.program) + " train " + shell_quoted(request.file);
  for (const std::string& argument : request.override_arguments)
    if (!argument.starts_with("--checkpoint.resume=")) command += " " + shell_quoted(argument);
  if (file_settings.run.checkpoint.resume != "auto") command += " --checkpoint.resume=auto";
  return command;
}

}  // namespace

ExitCode run_train(const CommandLine& line) {
  const Request request = read_request(line.arguments);
  if (request.help) {
    std::fputs((usage + key_help()).c_str(), stdout);
    return ExitCode::done;
  }
  if (request.file.empty()) {
    if (!request.print_config)
      fail_usage("hearth train needs a CONFIG.toml, such as configs/tiny.toml; see hearth train --help");
    std::fputs(reference_text(apply(request.overrides)).c_str(), stdout);
    return ExitCode::done;
  }
  std::vector<Assignment> assignments = read_config_file(request.file);
  const Settings file_settings = apply(assignments);
  assignments.insert(assignments.end(), request.overrides.begin(), request.overrides.end());
  Settings settings = apply(assignments);
  resolve_names(settings, request.file);
  validate(settings.run);
  if (request.print_config) {
    std::fputs(config_text(settings).c_str(), stdout);
    return ExitCode::done;
  }
  // A console that goes away (a closed pipe) must not cost the run: log.txt has every line.
  std::signal(SIGPIPE, SIG_IGN);
  const ExitCode code = train(settings.run, values_of(settings), config_text(settings),
                              resume_command(line, request, file_settings));
  std::clearerr(stdout);
  return code;
}

}  // namespace hearth
