// Messages between the ranks of one group: Gloo's transport with deadlines, an abort that works from any
// thread, and errors that name the rank that did not answer.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/control_plane.h"

namespace hearth {

// One operation of a group: what it is called in messages, its tag, and when it is given up.
struct Operation {
  std::string name;  // "all_reduce 12 of 4096 F32"
  uint64_t tag = 0;
  Clock::time_point deadline{};
};

class GlooLink {
 public:
  GlooLink(ControlPlane& control, std::shared_ptr<gloo::transport::Device>& device, std::string name,
           std::vector<int> ranks);
  ~GlooLink();
  GlooLink(const GlooLink&) = delete;
  GlooLink& operator=(const GlooLink&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  // `kind` of `elements` `type`; `number` counts the operations that must match between ranks.
  Operation operation(const std::string& kind, const std::string& type, int64_t elements,
                      uint64_t number) const;
  // When an operation that starts now is given up.
  Clock::time_point deadline() const;
  // Ends all waiting with an error: the run's failure.
  void abort() noexcept;
  // The same, but this rank only unwinds: its real reason is on its way to the control plane elsewhere.
  void close() noexcept;

  // Messages that are under way together.  Starting one never blocks;
  // its memory must live until the batch is gone.
  class Batch {
   public:
    explicit Batch(GlooLink& link);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    // `part` tells the messages of one operation between two ranks apart.  No bytes: no message.
    void send(const Operation& operation, int peer, const void* from, int64_t bytes, uint64_t part = 0);
    void receive(const Operation& operation, int peer, void* to, int64_t bytes, uint64_t part = 0);
    // Waits for everything that was started.  Throws Error.
    void wait(const Operation& operation);

   private:
    friend class GlooLink;
    // Gloo's buffers forget which of several peers has answered, so each message has its own.
    struct Message {
      int peer;
      bool sends;
      std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    };
    void start(const Operation& operation, Message message, int64_t bytes, uint64_t part);
    template <class Action>
    void guarded(const Operation& operation, int peer, const Action& action);

    GlooLink& link_;
    std::vector<Message> messages_;
  };

 private:
  [[noreturn]] void fail(const Operation& operation, int peer, const std::string& why);

  ControlPlane& control_;
  const std::string name_;
  const std::vector<int> ranks_;  // of the run, by rank in the group
  const int rank_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> closing_ = false;
  std::mutex mutex_;
  std::set<Batch*> batches_;
  int listener_ = -1;
};

}  // namespace hearth
