// Ranks as threads of one process, for tests and `hearth check`: whole layouts, fast, without sockets.
//
// The collectives are the naive ones: everybody shows what it has, everybody waits, everybody takes what it
// needs. Memory must be the host's.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace hearth {

// One group of threads that meet.  A closed table lets nobody wait: Error(peer).
class MeetingTable {
 public:
  explicit MeetingTable(int size) : shown_(static_cast<size_t>(size)) {}

  int size() const { return static_cast<int>(shown_.size()); }
  // Returns when all have called it.
  void wait();
  // Another rank has failed: ends everybody's waiting, now and later.
  void close() noexcept;

  // Shows a tensor to all, and waits until all have shown theirs.
  void show(int rank, const Tensor& t);
  const Tensor& shown(int rank) const { return shown_[static_cast<size_t>(rank)]; }

  // Point to point: the bytes are copied when they are sent.
  void put(int from, int to, const Tensor& t);
  void take(int from, int to, const Tensor& t);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int arrived_ = 0;
  int64_t meetings_ = 0;
  std::vector<Tensor> shown_;
  std::map<std::pair<int, int>, std::vector<std::vector<char>>> mail_;
};

// A rank's seat at the table.  Operations are done when the call returns.
class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<MeetingTable> table, int rank) : table_(std::move(table)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return table_->size(); }
  Request all_reduce(const Tensor& inout, Reduce op) override;
  Request reduce_scatter(const Tensor& in, const Tensor& out) override;
  Request all_gather(const Tensor& in, const Tensor& out) override;
  Request broadcast(const Tensor& inout, int root) override;
  Request exchange(std::span<const Transfer> transfers) override;
  void barrier() override { table_->wait(); }
  void abort() noexcept override { table_->close(); }

 private:
  // Elements [first, first + count) of what everybody shows, combined in rank order.
  std::vector<char> combined(Reduce op, int64_t first, int64_t count) const;

  std::shared_ptr<MeetingTable> table_;
  int rank_;
};

}  // namespace hearth
