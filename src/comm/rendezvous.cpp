#include "comm/rendezvous.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "comm/slurm.h"

namespace hearth {
namespace {

using Names = std::vector<std::string>;

int64_t integer(const Lookup& lookup, const std::string& name, int64_t low, int64_t high) {
  const std::string value = lookup(name).value_or("");
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < low || number > high)
    fail_usage(name, " = '", value, "' must be a whole number from ", low, " to ", high);
  return number;
}

bool any_set(const Lookup& lookup, const Names& names) {
  for (const std::string& name : names)
    if (lookup(name)) return true;
  return false;
}

// All names are set, or it is an error that lists them.
void require_all(const Lookup& lookup, const Names& names, const std::string& advice) {
  std::string seen, missing;
  for (const std::string& name : names) {
    const auto value = lookup(name);
    if (value)
      seen += text(seen.empty() ? "" : ", ", name, "=", *value);
    else
      missing += text(missing.empty() ? "" : ", ", name);
  }
  if (!missing.empty()) fail_usage("found ", seen, " but not ", missing, "; ", advice);
}

void read_ranks(const Lookup& lookup, const std::string& rank, const std::string& world,
                const std::string& local_rank, Rendezvous& out) {
  out.world = static_cast<int>(integer(lookup, world, 1, 1'000'000));
  out.rank = static_cast<int>(integer(lookup, rank, 0, out.world - 1));
  out.local_rank = static_cast<int>(integer(lookup, local_rank, 0, out.world - 1));
}

void read_master(const Lookup& variable, Rendezvous& out) {
  out.host = *variable("MASTER_ADDR");
  out.port = static_cast<int>(integer(variable, "MASTER_PORT", 1, 65535));
}

std::optional<Rendezvous> from_flags(const Lookup& flag, const Lookup& variable) {
  const Names names{"--rank", "--world-size", "--local-rank", "--rendezvous"};
  if (!any_set(flag, names)) return std::nullopt;
  require_all(flag, names, "give all four");
  Rendezvous out;
  out.source = "flags";
  read_ranks(flag, "--rank", "--world-size", "--local-rank", out);
  const std::string where = *flag("--rendezvous");
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos || colon == 0)
    fail_usage("--rendezvous = '", where, "' must be HOST:PORT, the place where rank 0 listens");
  out.host = where.substr(0, colon);
  if (out.host.front() == '[' && out.host.back() == ']') out.host = out.host.substr(1, out.host.size() - 2);
  const Lookup port = [&](const std::string&) { return std::optional(where.substr(colon + 1)); };
  out.port = static_cast<int>(integer(port, "the port of --rendezvous", 1, 65535));
  out.token = variable("HEARTH_TOKEN").value_or("");
  return out;
}

std::optional<Rendezvous> from_environment(const Lookup& variable) {
  // MASTER_ADDR and MASTER_PORT alone do not announce this set: they also serve the next two.
  if (!any_set(variable, {"RANK", "WORLD_SIZE", "LOCAL_RANK"})) return std::nullopt;
  require_all(variable, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"},
              "set all five or none, or start with `hearth launch`");
  Rendezvous out;
  out.source = "environment";
  read_ranks(variable, "RANK", "WORLD_SIZE", "LOCAL_RANK", out);
  read_master(variable, out);
  out.token = variable("HEARTH_TOKEN").value_or("");
  if (out.rank == 0 && variable("HEARTH_LISTENER"))
    out.listener = static_cast<int>(integer(variable, "HEARTH_LISTENER", 3, 1'000'000));
  return out;
}

// In a batch script and in an interactive allocation SLURM sets much the same variables, with the step
// numbers at the top of the 32-bit range.
bool in_slurm_step(const Lookup& variable) {
  if (!variable("SLURM_PROCID") || !variable("SLURM_STEP_ID") || !variable("SLURM_STEP_NUM_TASKS"))
    return false;
  return integer(variable, "SLURM_STEP_ID", 0, UINT32_MAX) < 0xfffffff0;
}

std::optional<Rendezvous> from_slurm(const Lookup& variable) {
  if (!in_slurm_step(variable)) return std::nullopt;
  require_all(variable,
              {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID",
               "SLURM_STEP_ID"},
              "set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT by hand");
  Rendezvous out;
  out.source = "SLURM";
  read_ranks(variable, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", out);
  const int64_t job = integer(variable, "SLURM_JOB_ID", 0, INT64_MAX / 16);
  const int64_t step = integer(variable, "SLURM_STEP_ID", 0, UINT32_MAX);
  out.host = variable("MASTER_ADDR").value_or(parse_node_list(*variable("SLURM_STEP_NODELIST")).front());
  out.port = variable("MASTER_PORT") ? static_cast<int>(integer(variable, "MASTER_PORT", 1, 65535))
                                     : static_cast<int>(20000 + (job * 7 + step) % 20000);
  out.token = text("slurm-", job, ".", step, ".", variable("SLURM_RESTART_COUNT").value_or("0"));
  return out;
}

// MPI launchers say who we are, but not where rank 0 is.
std::optional<Rendezvous> from_mpi(const Lookup& variable, const std::string& source, const Names& names,
                                   const std::string& job_name) {
  if (!variable(names[0])) return std::nullopt;
  require_all(variable, names, "set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT by hand");
  Rendezvous out;
  out.source = source;
  read_ranks(variable, names[0], names[1], names[2], out);
  if (out.world == 1) return out;
  require_all(variable, {names[0], "MASTER_ADDR", "MASTER_PORT"},
              "say where rank 0 is, for example: mpirun -x MASTER_ADDR=node1 -x MASTER_PORT=29500 ...");
  read_master(variable, out);
  out.token = variable("HEARTH_TOKEN").value_or(variable(job_name).value_or(""));
  return out;
}

}  // namespace

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

Rendezvous find_rendezvous(const Lookup& flag, const Lookup& variable) {
  if (auto found = from_flags(flag, variable)) return *found;
  if (auto found = from_environment(variable)) return *found;
  if (auto found = from_slurm(variable)) return *found;
  if (auto found = from_mpi(variable, "Open MPI",
                            {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
                            "PMIX_NAMESPACE"))
    return *found;
  if (auto found = from_mpi(variable, "MPI (PMI)", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}, "PMI_JOBID"))
    return *found;
  return {};
}

}  // namespace hearth
