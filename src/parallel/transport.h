// Which library moves tensors between ranks: a decision of all ranks together,
// from what each says of its device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace hearth {

// What a rank tells the others.
struct RankDevice {
  std::string host;
  int64_t pid = 0;
  std::string kind;              // "cuda"
  std::string identity;          // of the GPU, on its host
  std::string nccl_version;      // empty when NCCL cannot be used there,
  std::string nccl_unavailable;  // and why
};

struct TransportChoice {
  bool nccl = false;
  std::string description;          // "gloo, through host memory (NCCL ...)"
  std::string refusal;              // the one that the config asks for cannot be had: one sentence,
  ExitCode code = ExitCode::usage;  // and its exit code
};

// `wanted` is "auto", "nccl" or "gloo"; `ranks` are all ranks of the run.  NCCL needs a GPU for each rank,
// and the same version everywhere; auto takes it where that holds.
TransportChoice choose_transport(const std::string& wanted, const std::vector<RankDevice>& ranks);

// On the wire.
std::string encode(const RankDevice& device);
RankDevice decode(const std::string& message);
std::string encode(const TransportChoice& choice);
TransportChoice decode_choice(const std::string& message);

}  // namespace hearth
