// Ranks as threads of one process: whole layouts in a test, fast, without sockets.  The collectives are the
// naive ones: everything is put on the table, everybody waits, everybody takes what it needs.
#pragma once

#include <barrier>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "parallel/process_groups.h"

namespace hearth::testing {

// One group of threads that meet.
class Table {
 public:
  explicit Table(int size) : barrier_(size), shown_(static_cast<size_t>(size)) {}

  int size() const { return static_cast<int>(shown_.size()); }
  void wait() { barrier_.arrive_and_wait(); }
  Tensor& shown(int rank) { return shown_[static_cast<size_t>(rank)]; }

  // Point to point: the bytes are copied when they are sent.
  void put(int from, int to, const Tensor& t) {
    const auto* bytes = static_cast<const char*>(t.data);
    const std::lock_guard lock(mutex_);
    mail_[{from, to}].emplace_back(bytes, bytes + t.bytes());
    changed_.notify_all();
  }
  void take(int from, int to, const Tensor& t) {
    std::unique_lock lock(mutex_);
    auto& box = mail_[{from, to}];
    changed_.wait(lock, [&] { return !box.empty(); });
    check(static_cast<int64_t>(box.front().size()) == t.bytes(), "sent ", box.front().size(),
          " bytes, expected ", t.bytes());
    std::memcpy(t.data, box.front().data(), box.front().size());
    box.erase(box.begin());
  }

 private:
  std::barrier<> barrier_;
  std::vector<Tensor> shown_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::vector<std::vector<char>>> mail_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Table> table, int rank) : table_(std::move(table)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return table_->size(); }

  Request all_reduce(const Tensor& t, Reduce op) override {
    std::vector<char> result(static_cast<size_t>(t.bytes()));
    const Tensor out(result.data(), t.dtype, {t.elements()});
    show(t.reshaped({t.elements()}));
    combine(out, 0, op);
    table_->wait();
    std::memcpy(t.data, result.data(), result.size());
    table_->wait();
    return {};
  }
  Request reduce_scatter(const Tensor& in, const Tensor& out) override {
    std::vector<char> result(static_cast<size_t>(out.bytes()));
    show(in.reshaped({in.elements()}));
    combine(Tensor(result.data(), out.dtype, {out.elements()}), rank_ * out.elements(), Reduce::sum);
    table_->wait();
    std::memcpy(out.data, result.data(), result.size());
    return {};
  }
  Request all_gather(const Tensor& in, const Tensor& out) override {
    show(in);
    for (int r = 0; r < size(); ++r)
      std::memmove(static_cast<char*>(out.data) + r * in.bytes(), table_->shown(r).data,
                   static_cast<size_t>(in.bytes()));
    table_->wait();
    return {};
  }
  Request broadcast(const Tensor& t, int root) override {
    show(t);
    if (rank_ != root) std::memcpy(t.data, table_->shown(root).data, static_cast<size_t>(t.bytes()));
    table_->wait();
    return {};
  }
  Request exchange(std::span<const Transfer> transfers) override {
    for (const Transfer& t : transfers)
      if (t.direction == Transfer::Direction::send) table_->put(rank_, t.peer, t.tensor);
    for (const Transfer& t : transfers)
      if (t.direction == Transfer::Direction::receive) table_->take(t.peer, rank_, t.tensor);
    return {};
  }
  void barrier() override { table_->wait(); }

 private:
  void show(const Tensor& t) {
    table_->shown(rank_) = t;
    table_->wait();
  }

  template <class T>
  void combine_as(const Tensor& out, int64_t first, Reduce op) {
    for (int64_t i = 0; i < out.elements(); ++i) {
      double value = 0;
      for (int r = 0; r < size(); ++r) {
        const double x = static_cast<double>(static_cast<const T*>(table_->shown(r).data)[first + i]);
        value = r == 0 ? x : op == Reduce::sum ? value + x : std::max(value, x);
      }
      static_cast<T*>(out.data)[i] = static_cast<T>(value);
    }
  }
  void combine(const Tensor& out, int64_t first, Reduce op) {
    if (out.dtype == DType::f64) return combine_as<double>(out, first, op);
    if (out.dtype == DType::f32) return combine_as<float>(out, first, op);
    check(false, "thread ranks reduce f32 and f64 only");
  }

  std::shared_ptr<Table> table_;
  int rank_;
};

// Runs body(groups) as every rank of a grid; the first exception of any rank is thrown here.  `decorate` may
// wrap a communicator (axis, communicator) -> communicator: that is how mutants are made.
using Decorate = std::function<std::unique_ptr<Communicator>(Axis, std::unique_ptr<Communicator>)>;
inline void run_ranks(int tensor, int data, int pipeline,
                      const std::function<void(const ProcessGroups&)>& body, const Decorate& decorate = {}) {
  const int world = tensor * data * pipeline;
  std::map<std::pair<Axis, int>, std::shared_ptr<Table>> tables;
  for (int rank = 0; rank < world; ++rank)
    for (Axis axis : {Axis::tensor, Axis::data, Axis::pipeline}) {
      const std::vector<int> group = Grid(tensor, data, pipeline, rank).group(axis);
      auto& table = tables[{axis, group[0]}];
      if (!table) table = std::make_shared<Table>(static_cast<int>(group.size()));
    }
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      ProcessGroups groups;
      groups.grid = Grid(tensor, data, pipeline, rank);
      const auto connect = [&](Axis axis) -> std::unique_ptr<Communicator> {
        std::unique_ptr<Communicator> c = std::make_unique<ThreadCommunicator>(
            tables.at({axis, groups.grid.group(axis)[0]}), groups.grid.at(axis));
        return decorate ? decorate(axis, std::move(c)) : std::move(c);
      };
      groups.tensor = connect(Axis::tensor);
      groups.data = connect(Axis::data);
      groups.pipeline = connect(Axis::pipeline);
      try {
        body(groups);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads)
    thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace hearth::testing
