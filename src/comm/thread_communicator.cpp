#include "comm/thread_communicator.h"

#include <cstring>

#include "base/error.h"
#include "comm/combine.h"

namespace hearth {

namespace {

[[noreturn]] void fail_closed() {
  throw Error(ExitCode::peer, "another rank of this process has failed");
}

}  // namespace

// ---- the table

void MeetingTable::wait() {
  std::unique_lock lock(mutex_);
  if (closed_) fail_closed();
  const int64_t meeting = meetings_;
  if (++arrived_ == size()) {
    arrived_ = 0;
    ++meetings_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return closed_ || meetings_ != meeting; });
  if (meetings_ == meeting) fail_closed();
}

void MeetingTable::close() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void MeetingTable::show(int rank, const Tensor& t) {
  shown_[static_cast<size_t>(rank)] = t;
  wait();
}

void MeetingTable::put(int from, int to, const Tensor& t) {
  const auto* bytes = static_cast<const char*>(t.data);
  const std::lock_guard lock(mutex_);
  mail_[{from, to}].emplace_back(bytes, bytes + t.bytes());
  changed_.notify_all();
}

void MeetingTable::take(int from, int to, const Tensor& t) {
  std::unique_lock lock(mutex_);
  auto& box = mail_[{from, to}];
  changed_.wait(lock, [&] { return closed_ || !box.empty(); });
  if (box.empty()) fail_closed();
  check(static_cast<int64_t>(box.front().size()) == t.bytes(), "rank ", from, " sent ", box.front().size(),
        " bytes, rank ", to, " expected ", t.bytes());
  std::memcpy(t.data, box.front().data(), box.front().size());
  box.erase(box.begin());
}

// ---- the collectives

std::vector<char> ThreadCommunicator::combined(Reduce op, int64_t first, int64_t count) const {
  const DType type = table_->shown(rank_).dtype;
  std::vector<const void*> parts;
  for (int r = 0; r < size(); ++r)
    parts.push_back(static_cast<const char*>(table_->shown(r).data) + first * size_of(type));
  std::vector<char> out(static_cast<size_t>(count * size_of(type)));
  combine(type, op, parts, out.data(), count);
  return out;
}

Request ThreadCommunicator::all_reduce(const Tensor& inout, Reduce op) {
  table_->show(rank_, inout);
  const std::vector<char> result = combined(op, 0, inout.elements());
  table_->wait();  // all have read: now they may write
  std::memcpy(inout.data, result.data(), result.size());
  return {};
}

Request ThreadCommunicator::reduce_scatter(const Tensor& in, const Tensor& out) {
  table_->show(rank_, in);
  const std::vector<char> result = combined(Reduce::sum, rank_ * out.elements(), out.elements());
  table_->wait();
  std::memcpy(out.data, result.data(), result.size());
  return {};
}

Request ThreadCommunicator::all_gather(const Tensor& in, const Tensor& out) {
  table_->show(rank_, in);
  for (int r = 0; r < size(); ++r)
    std::memmove(static_cast<char*>(out.data) + r * in.bytes(), table_->shown(r).data,
                 static_cast<size_t>(in.bytes()));
  table_->wait();
  return {};
}

Request ThreadCommunicator::broadcast(const Tensor& inout, int root) {
  table_->show(rank_, inout);
  if (rank_ != root) std::memcpy(inout.data, table_->shown(root).data, static_cast<size_t>(inout.bytes()));
  table_->wait();
  return {};
}

Request ThreadCommunicator::exchange(std::span<const Transfer> transfers) {
  for (const Transfer& t : transfers)
    if (t.direction == Transfer::Direction::send) table_->put(rank_, t.peer, t.tensor);
  for (const Transfer& t : transfers)
    if (t.direction == Transfer::Direction::receive) table_->take(t.peer, rank_, t.tensor);
  return {};
}

}  // namespace hearth
