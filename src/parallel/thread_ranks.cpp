#include "parallel/thread_ranks.h"

#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/thread_communicator.h"

namespace hearth {

namespace {

constexpr std::array axes{Axis::tensor, Axis::data, Axis::pipeline};

// The tables of all groups of a grid: by axis, and the group's first rank.
class Tables {
 public:
  Tables(int tensor, int data, int pipeline) {
    for (int rank = 0; rank < tensor * data * pipeline; ++rank)
      for (Axis axis : axes) {
        const std::vector<int> group = Grid(tensor, data, pipeline, rank).group(axis);
        auto& table = tables_[{axis, group[0]}];
        if (!table) table = std::make_shared<MeetingTable>(static_cast<int>(group.size()));
      }
  }

  std::unique_ptr<Communicator> seat(const Grid& grid, Axis axis) const {
    return std::make_unique<ThreadCommunicator>(tables_.at({axis, grid.group(axis)[0]}), grid.at(axis));
  }
  void close() const noexcept {
    for (const auto& [where, table] : tables_)
      table->close();
  }

 private:
  std::map<std::pair<Axis, int>, std::shared_ptr<MeetingTable>> tables_;
};

}  // namespace

void run_as_threads(int tensor, int data, int pipeline, const std::function<void(const ProcessGroups&)>& body,
                    const Decorate& decorate) {
  const Tables tables(tensor, data, pipeline);
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int rank) {
    try {
      ProcessGroups groups;
      groups.grid = Grid(tensor, data, pipeline, rank);
      const auto connect = [&](Axis axis) {
        std::unique_ptr<Communicator> seat = tables.seat(groups.grid, axis);
        return decorate ? decorate(axis, std::move(seat)) : std::move(seat);
      };
      groups.tensor = connect(Axis::tensor);
      groups.data = connect(Axis::data);
      groups.pipeline = connect(Axis::pipeline);
      body(groups);
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      tables.close();
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < tensor * data * pipeline; ++rank)
    threads.emplace_back(run, rank);
  for (std::thread& thread : threads)
    thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace hearth
