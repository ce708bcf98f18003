// hearth-fuzz PARSER COUNT SEED [FIRST]: feeds COUNT mutated inputs to a parser, or to each one for "all".
//
// Exit 0 when there was no finding, 1 otherwise.  A finding prints the command that repeats that one input.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>

#include <unistd.h>

#include "base/error.h"
#include "fuzz.h"
#include "support/temp_dir.h"

// Sanitizers end in abort(), which the handler below reports.
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1:allocator_may_return_null=0:max_allocation_size_mb=512:handle_segv=0";
}
extern "C" const char* __ubsan_default_options() {
  return "abort_on_error=1:halt_on_error=1:print_stacktrace=1";
}

namespace hearth::fuzz {
namespace {

constexpr double most_seconds = 1.0;

// The input in progress, as a command line; a signal handler can reach nothing else.
char in_progress[256];

void report_and_die(int signal) {
  static_cast<void>(!write(STDERR_FILENO, in_progress, std::strlen(in_progress)));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

struct Tally {
  int64_t accepted = 0;
  int64_t refused = 0;
  int64_t findings = 0;
};

void run_one(const Parser& parser, uint64_t seed, int64_t number, const fs::path& scratch, Tally& tally) {
  std::snprintf(in_progress, sizeof in_progress, "FINDING: repeat with  hearth-fuzz %s 1 %llu %lld\n",
                parser.name.c_str(), static_cast<unsigned long long>(seed), static_cast<long long>(number));
  std::seed_seq sequence{seed, static_cast<uint64_t>(number)};
  std::mt19937_64 random(sequence);
  const std::string input = mutate(parser.seeds, random);
  const double start = cpu_seconds();
  try {
    parser.parse(input, scratch);
    ++tally.accepted;
  } catch (const Error&) {
    ++tally.refused;
  } catch (const std::exception& error) {
    ++tally.findings;
    std::cerr << in_progress << "  " << error.what() << "\n";
  }
  if (cpu_seconds() - start > most_seconds) {
    ++tally.findings;
    std::cerr << in_progress << "  took " << cpu_seconds() - start << " s\n";
  }
}

// Feeds inputs first .. first + count of this seed.
bool run(const Parser& parser, int64_t count, uint64_t seed, int64_t first) {
  const TempDir scratch;
  Tally tally;
  const double start = cpu_seconds();
  for (int64_t i = 0; i < count; ++i)
    run_one(parser, seed, first + i, scratch.path(), tally);
  std::cout << parser.name << ": " << count << " inputs, " << tally.accepted << " accepted, " << tally.refused
            << " refused, " << tally.findings << " findings, " << cpu_seconds() - start << " s\n";
  return tally.findings == 0;
}

int usage(const std::vector<Parser>& parsers) {
  std::cerr << "usage: hearth-fuzz PARSER|all COUNT SEED [FIRST]\nparsers:";
  for (const Parser& parser : parsers)
    std::cerr << " " << parser.name;
  std::cerr << "\n";
  return 2;
}

int main(int argc, char** argv) {
  const std::vector<Parser> parsers = all_parsers();
  if (argc < 4 || argc > 5) return usage(parsers);
  std::signal(SIGABRT, report_and_die);
  std::signal(SIGSEGV, report_and_die);
  bool known = false;
  bool clean = true;
  for (const Parser& parser : parsers) {
    if (parser.name != argv[1] && std::strcmp(argv[1], "all") != 0) continue;
    known = true;
    clean = run(parser, std::atoll(argv[2]), std::strtoull(argv[3], nullptr, 10),
                argc == 5 ? std::atoll(argv[4]) : 0) &&
            clean;
  }
  if (!known) return usage(parsers);
  return clean ? 0 : 1;
}

}  // namespace
}  // namespace hearth::fuzz

int main(int argc, char** argv) {
  return hearth::fuzz::main(argc, argv);
}
