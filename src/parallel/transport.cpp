#include "parallel/transport.h"

#include <algorithm>

#include "comm/failure.h"
#include "comm/wire.h"

namespace hearth {
namespace {

std::string name_of_rank(const std::vector<RankDevice>& ranks, size_t rank) {
  return describe(static_cast<int>(rank), {ranks[rank].host, ranks[rank].pid, ""});
}

// Why NCCL cannot connect these ranks, and whose affair that is.
struct Obstacle {
  std::string reason;  // empty: none
  std::string advice;
  ExitCode code = ExitCode::usage;
};

Obstacle obstacle_of(const std::vector<RankDevice>& ranks) {
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].kind != "cuda")
      return {text(name_of_rank(ranks, r), " has device ", ranks[r].kind, ", and NCCL connects GPUs only"),
              "use parallel.transport = \"gloo\" or \"auto\"", ExitCode::usage};
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].nccl_version.empty())
      return {text(name_of_rank(ranks, r), " cannot use NCCL: ", ranks[r].nccl_unavailable),
              "install NCCL 2.18 or newer, or use parallel.transport = \"gloo\"", ExitCode::device};
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].nccl_version != ranks[0].nccl_version)
      return {text(name_of_rank(ranks, r), " has NCCL ", ranks[r].nccl_version, " and ",
                   name_of_rank(ranks, 0), " has ", ranks[0].nccl_version),
              "install the same version everywhere, or use parallel.transport = \"gloo\"", ExitCode::device};
  for (size_t b = 0; b < ranks.size(); ++b)
    for (size_t a = 0; a < b; ++a)
      if (ranks[a].host == ranks[b].host && ranks[a].identity == ranks[b].identity)
        return {text("ranks ", a, " and ", b, " on ", ranks[a].host, " share GPU ", ranks[a].identity,
                     ", and NCCL needs one for each rank"),
                "start at most as many ranks on a host as it has GPUs, or use parallel.transport = \"gloo\"",
                ExitCode::usage};
  return {};
}

}  // namespace

TransportChoice choose_transport(const std::string& wanted, const std::vector<RankDevice>& ranks) {
  TransportChoice choice;
  const bool gpus =
      std::any_of(ranks.begin(), ranks.end(), [](const RankDevice& r) { return r.kind == "cuda"; });
  const Obstacle obstacle = obstacle_of(ranks);
  if (wanted == "nccl" && !obstacle.reason.empty()) {
    choice.code = obstacle.code;
    choice.refusal = text("parallel.transport = \"nccl\": ", obstacle.reason, "; ", obstacle.advice);
    return choice;
  }
  choice.nccl = wanted == "nccl" || (wanted == "auto" && obstacle.reason.empty());
  if (choice.nccl)
    choice.description = "nccl " + ranks[0].nccl_version;
  else if (!gpus)
    choice.description = "gloo";
  else
    choice.description = text("gloo, through host memory (",
                              wanted == "gloo" ? "as parallel.transport says" : obstacle.reason, ")");
  return choice;
}

std::string encode(const RankDevice& d) {
  return wire::Writer()
      .string(d.host)
      .u64(static_cast<uint64_t>(d.pid))
      .string(d.kind)
      .string(d.identity)
      .string(d.nccl_version)
      .string(d.nccl_unavailable)
      .message(wire::Kind::value);
}

RankDevice decode(const std::string& message) {
  wire::Inbox inbox;
  inbox.append(message);
  const auto whole = inbox.next();
  check(whole.has_value(), "a rank's description of its device is incomplete");
  wire::Reader in(whole->payload);
  RankDevice d;
  d.host = in.string();
  d.pid = static_cast<int64_t>(in.u64());
  d.kind = in.string();
  d.identity = in.string();
  d.nccl_version = in.string();
  d.nccl_unavailable = in.string();
  return d;
}

std::string encode(const TransportChoice& c) {
  return wire::Writer()
      .u32(c.nccl)
      .string(c.description)
      .string(c.refusal)
      .u32(static_cast<uint32_t>(c.code))
      .message(wire::Kind::value);
}

TransportChoice decode_choice(const std::string& message) {
  wire::Inbox inbox;
  inbox.append(message);
  const auto whole = inbox.next();
  check(whole.has_value(), "the choice of the transport is incomplete");
  wire::Reader in(whole->payload);
  TransportChoice c;
  c.nccl = in.u32() != 0;
  c.description = in.string();
  c.refusal = in.string();
  c.code = static_cast<ExitCode>(in.u32());
  return c;
}

}  // namespace hearth
