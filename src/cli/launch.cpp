// `hearth launch -n N COMMAND ...`: this program as N ranks of one run.
#include <cstdio>

#include "base/files.h"
#include "base/text.h"
#include "cli/commands.h"
#include "parallel/launcher.h"

namespace hearth {
namespace {

const char usage[] =
    "Usage:\n"
    "  hearth launch -n N COMMAND ...\n"
    "  hearth launch -n 8 train CONFIG.toml --parallel.tensor=2 --parallel.pipeline=2\n"
    "\n"
    "Starts `hearth COMMAND ...` as N ranks on this host, and takes care of them to the end: output lines "
    "get the\n"
    "rank in front, Ctrl-C reaches all once, the first failure ends the run and is the last line.  On "
    "several hosts\n"
    "scripts/launch_ssh.sh and scripts/launch_slurm.sbatch do it.\n"
    "\n"
    "  -n N              ranks on this host; must be given\n"
    "  --first-rank R    of this host's ranks (default 0)\n"
    "  --world-size W    ranks on all hosts (default N)\n"
    "  --master HOST:PORT  where rank 0 is met (default: this host, a free port)\n"
    "  --controlled      standard input carries the job's token, then names of signals to pass on; its end "
    "means TERM\n"
    "  -h, --help        this text\n";

int whole(const std::string& flag, const std::string& value, int least) {
  size_t used = 0;
  int number = -1;
  try {
    number = std::stoi(value, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != value.size() || value.empty() || number < least || number > 100'000)
    fail_usage("hearth launch: ", flag, " ", quoted(value), ", expected a whole number from ", least);
  return number;
}

void set_master(LaunchOptions& options, const std::string& value) {
  const size_t colon = value.rfind(':');
  if (colon == std::string::npos || colon == 0)
    fail_usage("hearth launch: --master ", quoted(value), ", expected HOST:PORT");
  options.host = value.substr(0, colon);
  options.port = whole("--master", value.substr(colon + 1), 1);
}

// Reads the launcher's own flags; returns where the command begins.
size_t read_flags(const std::vector<std::string>& arguments, LaunchOptions& options, bool& help) {
  options.processes = 0;
  size_t at = 0;
  for (; at < arguments.size() && arguments[at].starts_with("-"); ++at) {
    const std::string& flag = arguments[at];
    if (flag == "--help" || flag == "-h") {
      help = true;
      continue;
    }
    if (flag == "--controlled") {
      options.controlled = true;
      continue;
    }
    if (flag != "-n" && flag != "--first-rank" && flag != "--world-size" && flag != "--master")
      fail_usage("hearth launch: unknown option ", quoted(flag),
                 "; options of the command stand behind its name");
    if (at + 1 == arguments.size()) fail_usage("hearth launch: ", flag, " needs a value");
    const std::string& value = arguments[++at];
    if (flag == "-n") options.processes = whole(flag, value, 1);
    if (flag == "--first-rank") options.first_rank = whole(flag, value, 0);
    if (flag == "--world-size") options.world = whole(flag, value, 1);
    if (flag == "--master") set_master(options, value);
  }
  return at;
}

}  // namespace

ExitCode run_launch(const CommandLine& line) {
  LaunchOptions options;
  bool help = false;
  const size_t command = read_flags(line.arguments, options, help);
  if (help) {
    std::fputs(usage, stdout);
    return ExitCode::done;
  }
  if (options.processes == 0)
    fail_usage("hearth launch needs the number of ranks: hearth launch -n N COMMAND ...");
  if (command == line.arguments.size())
    fail_usage("hearth launch needs a command: hearth launch -n ", options.processes, " train CONFIG.toml");
  std::vector<std::string> argv{fs::read_symlink("/proc/self/exe").string()};
  argv.insert(argv.end(), line.arguments.begin() + static_cast<int64_t>(command), line.arguments.end());
  return static_cast<ExitCode>(launch(options, argv));
}

}  // namespace hearth
