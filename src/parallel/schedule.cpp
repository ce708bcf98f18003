#include "parallel/schedule.h"

#include <algorithm>

#include "base/error.h"

namespace hearth {
namespace {

// A stage's computations without its transfers.
struct Compute {
  bool backward;
  int microbatch;
  int chunk;
  bool steady = false;  // a forward of the steady state: the next is its backward
};

// The k-th forward (or backward) of a stage in the interleaved order: groups of P microbatches go through
// chunk 0, then chunk 1, ...; backwards through the chunks in reverse.
Compute interleaved_step(bool backward, int k, int stages, int chunks) {
  const int chunk = k % (stages * chunks) / stages;
  const int microbatch = k / (stages * chunks) * stages + k % stages;
  return {backward, microbatch, backward ? chunks - 1 - chunk : chunk};
}

// `warmup` forwards, then forward and backward in turn, then the remaining backwards.
std::vector<Compute> one_f_one_b(int warmup, int stages, int chunks, int microbatches) {
  const int total = microbatches * chunks;
  const auto step = [&](bool backward, int k) { return interleaved_step(backward, k, stages, chunks); };
  std::vector<Compute> order;
  warmup = std::min(warmup, total);
  for (int k = 0; k < warmup; ++k)
    order.push_back(step(false, k));
  for (int k = warmup; k < total; ++k) {
    order.push_back(step(false, k));
    order.back().steady = true;
    order.push_back(step(true, k - warmup));
  }
  for (int k = total - warmup; k < total; ++k)
    order.push_back(step(true, k));
  return order;
}

// Forwards before the first backward.  With only P microbatches there is no steady state: the first pair's
// backward would wait, over the other stages, for its own forward.
int interleaved_warmup(int stage, int stages, int chunks, int microbatches) {
  if (microbatches == stages) return microbatches * chunks;
  return 2 * (stages - stage - 1) + (chunks - 1) * stages;
}

// Groups of P microbatches go through the chunks as in training; the last group may be smaller.
std::vector<Compute> forward_only(int stages, int chunks, int microbatches) {
  std::vector<Compute> order;
  for (int first = 0; first < microbatches; first += stages)
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int m = first; m < std::min(first + stages, microbatches); ++m)
        order.push_back({false, m, chunk});
  return order;
}

std::vector<Compute> compute_order(ScheduleKind kind, int stage, int stages, int chunks, int microbatches) {
  switch (kind) {
    case ScheduleKind::gpipe:
      return one_f_one_b(microbatches, microbatches, 1, microbatches);
    case ScheduleKind::one_f_one_b:
      return one_f_one_b(stages - stage - 1, microbatches, 1, microbatches);
    case ScheduleKind::interleaved:
      return one_f_one_b(interleaved_warmup(stage, stages, chunks, microbatches), stages, chunks,
                         microbatches);
    case ScheduleKind::forward_only:
      break;
  }
  return forward_only(stages, chunks, microbatches);
}

// Where a computation's input comes from, or its output goes to: the neighbour in the order of the layers,
// unless that is the end of the model.
void add_transfer(bool sends, const Compute& compute, int stage, int stages, int chunks,
                  std::vector<StageTransfer>& out) {
  const bool towards_the_end = sends != compute.backward;
  const int part = compute.chunk * stages + stage;  // of stages * chunks parts of the model
  const int other = part + (towards_the_end ? 1 : -1);
  if (other < 0 || other >= stages * chunks) return;
  const int peer = other % stages;
  // With one stage, the next chunk is here: nothing travels.
  if (peer != stage) out.push_back({sends, compute.backward, peer, compute.microbatch, compute.chunk});
}

// Between two computations, the output of the first leaves while the input of the second arrives.  In the
// interleaved schedule a stage sends to and waits for the same neighbour in both directions, round the
// circle; there a forward and the backward after it share one exchange,
// or all stages could wait for one another.
std::vector<Action> with_transfers(const std::vector<Compute>& order, int stage, int stages, int chunks) {
  std::vector<Action> actions;
  std::vector<StageTransfer> leaving;
  for (size_t begin = 0, end; begin < order.size(); begin = end) {
    const bool pair = chunks > 1 && order[begin].steady;
    end = begin + (pair ? 2 : 1);
    std::vector<StageTransfer> transfers = std::move(leaving);
    leaving.clear();
    for (size_t i = begin; i < end; ++i)
      add_transfer(false, order[i], stage, stages, chunks, transfers);
    if (!transfers.empty()) actions.push_back({Action::Kind::exchange, 0, 0, std::move(transfers)});
    for (size_t i = begin; i < end; ++i) {
      const auto kind = order[i].backward ? Action::Kind::backward : Action::Kind::forward;
      actions.push_back({kind, order[i].microbatch, order[i].chunk, {}});
      add_transfer(true, order[i], stage, stages, chunks, leaving);
    }
  }
  if (!leaving.empty()) actions.push_back({Action::Kind::exchange, 0, 0, std::move(leaving)});
  return actions;
}

void mark_last_backwards(std::vector<Action>& actions, int chunks) {
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const auto last = std::find_if(actions.rbegin(), actions.rend(), [&](const Action& action) {
      return action.kind == Action::Kind::backward && action.chunk == chunk;
    });
    if (last != actions.rend()) last->last_backward = true;
  }
}

}  // namespace

std::string name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::gpipe:
      return "gpipe";
    case ScheduleKind::one_f_one_b:
      return "1f1b";
    case ScheduleKind::interleaved:
      return "interleaved";
    case ScheduleKind::forward_only:
      return "forward";
  }
  return "?";
}

Schedule make_schedule(ScheduleKind kind, int stages, int chunks, int microbatches) {
  check(stages >= 1 && chunks >= 1 && microbatches >= 1, "a schedule of ", stages, " stages, ", chunks,
        " chunks, ", microbatches, " microbatches");
  const bool interleaved = kind == ScheduleKind::interleaved;
  if (interleaved && chunks < 2)
    fail_usage("parallel.schedule = \"interleaved\" needs parallel.virtual >= 2 chunks per stage; found ",
               chunks);
  if (interleaved && microbatches % stages != 0)
    fail_usage(
        "parallel.schedule = \"interleaved\" needs a number of microbatches that is a multiple of the ",
        stages, " stages; found ", microbatches, ", the nearest are ", microbatches / stages * stages,
        " and ", (microbatches / stages + 1) * stages, "; change train.batch or train.micro_batch");
  if (kind == ScheduleKind::gpipe || kind == ScheduleKind::one_f_one_b)
    if (chunks != 1)
      fail_usage("parallel.virtual = ", chunks, " needs parallel.schedule = \"interleaved\"; found \"",
                 name_of(kind), "\"");
  Schedule schedule{kind, stages, chunks, microbatches, {}};
  for (int stage = 0; stage < stages; ++stage) {
    const std::vector<Compute> order = compute_order(kind, stage, stages, chunks, microbatches);
    schedule.actions.push_back(with_transfers(order, stage, stages, chunks));
    mark_last_backwards(schedule.actions.back(), chunks);
  }
  return schedule;
}

}  // namespace hearth
