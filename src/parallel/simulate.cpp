// Runs a schedule without computing anything: see simulate() and table_of() in schedule.h.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "parallel/schedule.h"

namespace hearth {
namespace {

// From one stage to another.  Activations and gradients share it, as in a Communicator, where transfers match
// in the order of the calls.
using Channel = std::pair<int, int>;

// A transfer as both of its ends see it.
struct Parcel {
  bool gradient;
  int microbatch;
  int part;          // of the model, that it comes from
  double ready = 0;  // when this end has started it
  bool same(const Parcel& other) const {
    return gradient == other.gradient && microbatch == other.microbatch && part == other.part;
  }
};

std::string describe(const Parcel& parcel) {
  return text(parcel.gradient ? "the gradient" : "the activation", " of microbatch ", parcel.microbatch,
              " from part ", parcel.part);
}

std::string label(const Action& action, int chunks) {
  const std::string name = text(action.kind == Action::Kind::forward ? "F" : "B", action.microbatch);
  return chunks > 1 ? text(name, ".", action.chunk) : name;
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, Sends sends) : schedule_(schedule), sends_(sends) {
    const auto stages = static_cast<size_t>(schedule.stages);
    next_.resize(stages);
    clock_.resize(stages);
    started_.resize(stages);
    received_.resize(stages);
    kept_.resize(stages);
    result_.in_flight.resize(stages);
    begin_.resize(stages);
  }

  Simulation run() {
    bool progress = true;
    while (progress && result_.trouble.empty()) {
      progress = false;
      for (int stage = 0; stage < schedule_.stages; ++stage)
        while (result_.trouble.empty() && advance(stage))
          progress = true;
    }
    finish();
    return result_;
  }

  // When each computation of a stage begins, with its action; valid after run().
  const std::vector<std::pair<double, const Action*>>& timeline(int stage) const {
    return begin_[index(stage)];
  }
  double duration(const Action& action) const {
    return (action.kind == Action::Kind::forward ? 1.0 : 2.0) / schedule_.chunks;
  }

 private:
  static size_t index(int i) { return static_cast<size_t>(i); }

  // One step of a stage; false when it has to wait or is done.
  bool advance(int stage) {
    const std::vector<Action>& actions = schedule_.actions[index(stage)];
    if (next_[index(stage)] == actions.size()) return false;
    const Action& action = actions[next_[index(stage)]];
    if (action.kind == Action::Kind::exchange) return exchange(stage, action);
    compute(stage, action);
    ++next_[index(stage)];
    return true;
  }

  void compute(int stage, const Action& action) {
    const auto key = std::pair(action.microbatch, action.chunk);
    const int part = action.chunk * schedule_.stages + stage,
              last_part = schedule_.stages * schedule_.chunks - 1;
    const bool forward = action.kind == Action::Kind::forward;
    const bool needs_input = schedule_.stages > 1 && part != (forward ? 0 : last_part);
    if (needs_input && !received_[index(stage)].erase({!forward, action.microbatch, action.chunk}))
      return trouble(stage, action, "has no input");
    auto& kept = kept_[index(stage)];
    if (forward && !kept.insert(key).second) return trouble(stage, action, "comes twice");
    result_.in_flight[index(stage)] =
        std::max(result_.in_flight[index(stage)], static_cast<int>(kept.size()));
    if (!forward && !kept.erase(key)) return trouble(stage, action, "has no forward before it");
    if (forward && schedule_.kind == ScheduleKind::forward_only) kept.erase(key);
    begin_[index(stage)].emplace_back(clock_[index(stage)], &action);
    clock_[index(stage)] += duration(action);
  }

  Parcel parcel(int stage, const StageTransfer& t, double ready) const {
    const int own = t.chunk * schedule_.stages + stage;
    return {t.gradient, t.microbatch, t.sends ? own : t.gradient ? own + 1 : own - 1, ready};
  }
  static Channel channel(int stage, const StageTransfer& t) {
    return t.sends ? Channel(stage, t.peer) : Channel(t.peer, stage);
  }

  // Starts all transfers at once, then waits for their counterparts.
  bool exchange(int stage, const Action& action) {
    auto& started = started_[index(stage)];
    if (!started) {
      started = clock_[index(stage)];
      for (const StageTransfer& t : action.transfers) {
        auto& queue = (t.sends ? sent_ : wanted_)[channel(stage, t)];
        queue.push_back(parcel(stage, t, *started));
        positions_[{stage, next_[index(stage)]}].push_back(queue.size() - 1);
      }
    }
    double end = *started;
    const auto& positions = positions_[{stage, next_[index(stage)]}];
    for (size_t i = 0; i < action.transfers.size(); ++i) {
      const StageTransfer& t = action.transfers[i];
      if (t.sends && sends_ == Sends::buffered) continue;
      const auto& counterparts = (t.sends ? wanted_ : sent_)[channel(stage, t)];
      if (positions[i] >= counterparts.size()) return false;
      const Parcel& other = counterparts[positions[i]];
      const Parcel own = parcel(stage, t, *started);
      if (!other.same(own)) {
        trouble(stage, action, text("meets ", describe(other), " where it has ", describe(own)));
        return false;
      }
      end = std::max(end, other.ready);
    }
    for (const StageTransfer& t : action.transfers)
      if (!t.sends) received_[index(stage)].insert({t.gradient, t.microbatch, t.chunk});
    clock_[index(stage)] = end;
    started.reset();
    ++next_[index(stage)];
    return true;
  }

  void trouble(int stage, const Action& action, const std::string& what) {
    const std::string name =
        action.kind == Action::Kind::exchange ? "an exchange" : label(action, schedule_.chunks);
    result_.trouble = text("stage ", stage, ": ", name, " ", what);
  }

  void finish() {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const size_t at = next_[index(stage)];
      if (at < schedule_.actions[index(stage)].size()) {
        result_.deadlock = true;
        if (result_.trouble.empty())
          result_.trouble = text("stage ", stage, " waits for ever in action ", at);
      }
      double busy = 0;
      for (const auto& [begin, action] : begin_[index(stage)])
        busy += duration(*action);
      result_.busy = std::max(result_.busy, busy);
      result_.time = std::max(result_.time, clock_[index(stage)]);
      if (!kept_[index(stage)].empty() && result_.trouble.empty())
        result_.trouble = text("stage ", stage, " keeps activations at the end");
    }
    for (const auto& [where, queue] : sent_)
      if (queue.size() != wanted_[where].size() && result_.trouble.empty())
        result_.trouble = text("stage ", where.first, " sends what stage ", where.second, " does not take");
  }

  const Schedule& schedule_;
  const Sends sends_;
  Simulation result_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::vector<std::optional<double>> started_;  // the exchange that a stage is in
  std::vector<std::set<std::tuple<bool, int, int>>> received_;
  std::vector<std::set<std::pair<int, int>>> kept_;
  std::vector<std::vector<std::pair<double, const Action*>>> begin_;
  std::map<Channel, std::vector<Parcel>> sent_, wanted_;
  std::map<std::pair<int, size_t>, std::vector<size_t>>
      positions_;  // in the channels, of an exchange's transfers
};

}  // namespace

Simulation simulate(const Schedule& schedule, Sends sends) {
  return Simulator(schedule, sends).run();
}

std::string table_of(const Schedule& schedule) {
  Simulator simulator(schedule, Sends::buffered);
  const Simulation result = simulator.run();
  size_t width = 2;
  for (const auto& actions : schedule.actions)
    for (const Action& action : actions)
      if (action.kind != Action::Kind::exchange)
        width = std::max(width, label(action, schedule.chunks).size());
  std::string out;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::string line = text("stage ", stage, stage < 10 && schedule.stages > 10 ? "  |" : " |");
    size_t column = 0;
    const auto append = [&](const std::string& cell) {
      line += text(" ", cell, std::string(width - cell.size(), ' '));
      ++column;
    };
    for (const auto& [begin, action] : simulator.timeline(stage)) {
      while (column < static_cast<size_t>(begin * schedule.chunks + 0.5))
        append(".");
      append(label(*action, schedule.chunks));
      if (action->kind == Action::Kind::backward) append("-");
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  const int tenths = static_cast<int>(result.bubble() * 1000 + 0.5);
  return out + text("bubble ", tenths / 10, ".", tenths % 10, "% of the ideal time; ", name_of(schedule.kind),
                    ", ", schedule.stages, " stages, ", schedule.microbatches, " microbatches\n");
}

}  // namespace hearth
