#include "comm/rendezvous.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "comm/slurm.h"

namespace hearth {
namespace {

using Settings = std::map<std::string, std::string>;

Lookup in(const Settings& settings) {
  return [settings](const std::string& name) -> std::optional<std::string> {
    const auto found = settings.find(name);
    return found == settings.end() ? std::nullopt : std::optional(found->second);
  };
}

Rendezvous found(const Settings& variables, const Settings& flags = {}) {
  return find_rendezvous(in(flags), in(variables));
}

std::string refusal(const Settings& variables, const Settings& flags = {}) {
  try {
    found(variables, flags);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "accepted";
}

const Settings by_hand{{"RANK", "3"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"MASTER_ADDR", "node1"},
                       {"MASTER_PORT", "29500"}};
const Settings slurm{{"SLURM_PROCID", "5"},       {"SLURM_STEP_NUM_TASKS", "16"},
                     {"SLURM_LOCALID", "1"},      {"SLURM_STEP_ID", "2"},
                     {"SLURM_JOB_ID", "1000"},    {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                     {"SLURM_RESTART_COUNT", "1"}};
const Settings open_mpi{{"OMPI_COMM_WORLD_RANK", "2"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                        {"MASTER_ADDR", "node1"},
                        {"MASTER_PORT", "29500"}};

Settings with(Settings base, const Settings& more) {
  for (const auto& [name, value] : more)
    base[name] = value;
  return base;
}

Settings without(Settings base, const std::string& name) {
  base.erase(name);
  return base;
}

TEST(Rendezvous, AloneWhenNothingIsSet) {
  EXPECT_EQ(found({}).world, 1);
  EXPECT_EQ(found({}).source, "alone");
  EXPECT_EQ(found({{"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}}).source, "alone");
}

TEST(Rendezvous, Environment) {
  const Rendezvous r = found(with(by_hand, {{"HEARTH_TOKEN", "abc"}}));
  EXPECT_EQ(r.source, "environment");
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.world, 8);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "node1");
  EXPECT_EQ(r.port, 29500);
  EXPECT_EQ(r.token, "abc");
  EXPECT_EQ(r.listener, -1);
}

TEST(Rendezvous, Flags) {
  const Rendezvous r = found(
      slurm,
      {{"--rank", "0"}, {"--world-size", "2"}, {"--local-rank", "0"}, {"--rendezvous", "[fe80::1]:77"}});
  EXPECT_EQ(r.source, "flags");
  EXPECT_EQ(r.host, "fe80::1");
  EXPECT_EQ(r.port, 77);
}

TEST(Rendezvous, Slurm) {
  const Rendezvous r = found(slurm);
  EXPECT_EQ(r.source, "SLURM");
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.world, 16);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "gpu07");
  EXPECT_EQ(r.port, 20000 + (1000 * 7 + 2) % 20000);
  EXPECT_EQ(r.token, "slurm-1000.2.1");
  EXPECT_EQ(found(with(slurm, {{"MASTER_ADDR", "ib-gpu07"}})).host, "ib-gpu07");
}

// A batch script and an interactive allocation set SLURM_PROCID as well, and are one process.
TEST(Rendezvous, SlurmOnlyInARealStep) {
  EXPECT_EQ(found(with(slurm, {{"SLURM_STEP_ID", "4294967291"}})).source, "alone");
  EXPECT_EQ(found(with(slurm, {{"SLURM_STEP_ID", "4294967290"}})).source, "alone");
  EXPECT_EQ(found(without(slurm, "SLURM_STEP_ID")).source, "alone");
}

TEST(Rendezvous, Mpi) {
  EXPECT_EQ(found(open_mpi).source, "Open MPI");
  EXPECT_EQ(found(open_mpi).rank, 2);
  const Settings hydra{{"PMI_RANK", "1"},
                       {"PMI_SIZE", "2"},
                       {"MPI_LOCALRANKID", "0"},
                       {"MASTER_ADDR", "node1"},
                       {"MASTER_PORT", "29500"}};
  EXPECT_EQ(found(hydra).source, "MPI (PMI)");
  EXPECT_NE(refusal(without(open_mpi, "MASTER_PORT")).find("mpirun -x MASTER_ADDR"), std::string::npos);
}

TEST(Rendezvous, EarlierSourcesWin) {
  EXPECT_EQ(found(with(with(slurm, open_mpi), by_hand)).source, "environment");
  EXPECT_EQ(found(with(slurm, open_mpi)).source, "SLURM");
}

TEST(Rendezvous, APartIsAnErrorThatSaysWhatWasSeen) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    const std::string message = refusal(without(by_hand, name));
    EXPECT_NE(message.find(std::string("but not ") + name), std::string::npos) << message;
  }
  EXPECT_NE(refusal(without(slurm, "SLURM_LOCALID")).find("but not SLURM_LOCALID"), std::string::npos);
  EXPECT_NE(refusal({}, {{"--rank", "1"}}).find("but not --world-size"), std::string::npos);
}

TEST(Rendezvous, NumbersOutOfRange) {
  for (const auto& [name, value] : Settings{{"RANK", "8"},
                                            {"RANK ", "-1"},
                                            {"WORLD_SIZE", "0"},
                                            {"WORLD_SIZE ", "eight"},
                                            {"MASTER_PORT", "65536"},
                                            {"LOCAL_RANK", "1x"}}) {
    const std::string variable = name.substr(0, name.find(' '));
    EXPECT_NE(refusal(with(by_hand, {{variable, value}})).find(variable + " = '" + value + "'"),
              std::string::npos);
  }
}

TEST(SlurmNodeList, Expands) {
  using List = std::vector<std::string>;
  EXPECT_EQ(parse_node_list("node1"), List({"node1"}));
  EXPECT_EQ(parse_node_list("a,b"), List({"a", "b"}));
  EXPECT_EQ(parse_node_list("node[01-03,7],x2"), List({"node01", "node02", "node03", "node7", "x2"}));
  EXPECT_EQ(parse_node_list("n[098-101]"), List({"n098", "n099", "n100", "n101"}));
  EXPECT_EQ(parse_node_list("r[1-2]n[3,5]-ib"), List({"r1n3-ib", "r1n5-ib", "r2n3-ib", "r2n5-ib"}));
}

TEST(SlurmNodeList, RefusesWhatIsNone) {
  for (const char* list : {"", "a,,b", "n[1-", "n1]", "n[3-1]", "n[a]", "n[]", "n[[1]]", "n[1-9999999999]"})
    EXPECT_THROW(parse_node_list(list), Error) << list;
}

}  // namespace
}  // namespace hearth
