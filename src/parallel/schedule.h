// Schedule: what each pipeline stage does, in order, as data.
//
// The engine is a switch over actions; the simulator runs them without a device to prove that nobody waits
// for ever, and to tell the bubble; `hearth plan` prints them.
//
//   gpipe        all forwards, then all backwards (Huang et al. 2019): M microbatches in flight
//   1f1b         P - s forwards, then one backward for each forward (Narayanan et al. 2019): min(P - s, M)
//   interleaved  1f1b where each stage holds v chunks of layers, P stages apart (Narayanan et al. 2021): a
//                bubble v times smaller for more transfers
//   forward      evaluation: no backwards
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hearth {

enum class ScheduleKind : uint8_t { gpipe, one_f_one_b, interleaved, forward_only };
std::string name_of(ScheduleKind kind);

// One half of a transfer between neighbouring stages.  Activations travel forwards, their gradients
// backwards; from the last stage forwards means to the first one, which has the next chunk.
struct StageTransfer {
  bool sends;
  bool gradient;  // backwards; else an activation, forwards
  int peer;       // stage
  int microbatch;
  int chunk;  // of the stage that computes on it, or has computed it: this one
  bool operator==(const StageTransfer&) const = default;
};

struct Action {
  enum class Kind : uint8_t { forward, backward, exchange };
  Kind kind;
  int microbatch = 0;  // of forward and backward
  int chunk = 0;
  std::vector<StageTransfer> transfers;  // of an exchange: they start together
  bool last_backward = false;            // of this chunk in the step: its gradients are complete
};

struct Schedule {
  ScheduleKind kind;
  int stages;                                // P
  int chunks;                                // v, per stage
  int microbatches;                          // M
  std::vector<std::vector<Action>> actions;  // by stage
};

// Throws Error(usage) for what cannot be: interleaved needs v >= 2 chunks and M a multiple of P; the others
// have v = 1.  Any M >= 1 works otherwise.
Schedule make_schedule(ScheduleKind kind, int stages, int chunks, int microbatches);

// Times in units of one microbatch's forward through a whole stage; a backward takes twice as long, a
// transfer nothing.
struct Simulation {
  bool deadlock = false;
  std::string trouble;         // which stages wait for what, or what is wrong with the order
  std::vector<int> in_flight;  // by stage: most activations kept at a time, in chunks
  double time = 0;             // of the whole step
  double busy = 0;             // of one stage
  double bubble() const { return busy > 0 ? (time - busy) / busy : 0; }  // idle time over ideal time
};

enum class Sends : uint8_t {
  waiting,   // an exchange ends when all of its transfers have met their counterparts
  buffered,  // it ends when everything is received; what is sent has been copied
};

// Runs the schedule.  Checks that transfers meet in order (first in, first out for each pair of stages and
// direction) and that every computation has its input.
Simulation simulate(const Schedule& schedule, Sends sends);

// One line per stage and one column per unit of time: "F3" forward of microbatch 3, "B3" backward, with the
// chunk behind a dot when there are several; the bubble below.
std::string table_of(const Schedule& schedule);

}  // namespace hearth
