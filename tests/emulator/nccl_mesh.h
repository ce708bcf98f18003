// The network of the stand-in for NCCL: messages between the ranks of one communicator, over Gloo.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace hearth::emulator {

// A message between this rank and `peer`.
struct NcclMessage {
  int peer;
  uint64_t tag;  // only equal tags meet
  bool sends;
  void* data;
  size_t bytes;
};

class NcclMesh {
 public:
  // Rank `rank` of `size` ranks that meet in `folder`.
  NcclMesh(std::string folder, int rank, int size)
      : folder_(std::move(folder)), context_(std::make_shared<gloo::rendezvous::Context>(rank, size)) {}

  int rank() const { return context_->rank; }
  int size() const { return context_->size; }
  const std::string& folder() const { return folder_; }

  // Waits for the others.  Throws what Gloo throws.
  void connect();
  // All messages at once; returns when all have arrived, here and there.
  // Throws when a peer is lost, or aborted.
  void exchange(const std::vector<NcclMessage>& messages);
  // From any thread.
  void abort();

 private:
  class Half;

  const std::string folder_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::mutex mutex_;
  std::set<gloo::transport::UnboundBuffer*> waiting_;
  bool aborted_ = false;
};

}  // namespace hearth::emulator
