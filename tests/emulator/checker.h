// The race detector: happens-before by vector clocks, per two bytes of memory.
//
// Each thread of a block has a clock; barriers, mbarriers and the completion of asynchronous operations make
// one thread's past part of another's.  Two accesses to the same bytes, one of them a write, that are not
// ordered that way are a race, whatever the schedule of this run was.  It knows further: bytes that nobody
// wrote, bytes whose asynchronous copy is still in flight, the generic and the asynchronous proxy, accesses
// by two blocks of one launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/simt.h"

namespace hearth::emulator {

struct Block;

// Ordinary loads, stores, ldmatrix, cp.async are the generic proxy; TMA and wgmma the asynchronous one.
enum class Proxy : uint8_t { generic, async };

// Where an access stands: a Site, or an address in the program (from the compiler's instrumentation).
class Place {
 public:
  Place() = default;
  explicit Place(Site site);
  explicit Place(const void* program_counter);
  std::string text() const;

 private:
  uint64_t code_ = 0;
};

class Checker {
 public:
  explicit Checker(Block& block);

  void begin_block(uint32_t launch_number, int64_t block_number, int threads);

  // ---- accesses.  Each fails the block when something is wrong.
  void shared(int thread, uint32_t address, uint32_t bytes, Access access, Proxy proxy, Place place);
  void global(int thread, const void* address, size_t bytes, Access access, Place place);
  // The target of an asynchronous copy, from its issue to its completion.
  void begin_copy(int thread, uint32_t address, uint32_t bytes, Proxy proxy, Place place);
  // `thread` waited for the copy; -1: an mbarrier tells who knows.
  void end_copy(int thread, uint32_t address, uint32_t bytes);

  // ---- order
  void join(std::span<const int> threads);     // all of them met at a barrier
  void release(uint32_t barrier, int thread);  // an arrival at an mbarrier
  void complete_phase(uint32_t barrier);       // its phase ended
  void acquire(uint32_t barrier, int thread);  // a wait on it succeeded
  void proxy_fence(int thread);                // fence.proxy.async
  // The tensor core of a warpgroup is an actor with a clock of its own: the numbers of its operations.
  // Operation `number` begins, issued by `warp`; returns the actor,
  // to be named as the thread of its accesses.
  int begin_tensor_core(int warp, int64_t number);
  // `thread` waited for all operations before `number`.
  void wait_for_tensor_core(int thread, int64_t number);

 private:
  struct Cell {
    uint32_t epoch = 0;  // block for which the rest is valid
    uint32_t write_clock = 0;
    uint32_t read_clock[2] = {};
    uint16_t writer = 0;
    uint16_t reader[2] = {};
    uint16_t flags = 0;
    Place write_place, read_place;
  };
  struct GlobalCell {
    Cell cell;
    uint32_t launch = 0;
    uint32_t writing_block = 0;  // number + 1
    uint32_t reading_block = 0;
    bool many_readers = false;
  };
  struct Reader {
    uint16_t thread;
    uint32_t clock;
  };
  struct Phase {
    std::vector<uint32_t> gathering, completed;
  };
  struct Request {
    int thread;
    Access access;
    Proxy proxy;
    Place place;
    const char* space;
    size_t offset;
  };

  uint32_t* clock(int actor) { return &clocks_[static_cast<size_t>(actor) * actors_]; }
  bool happened_before(int thread, uint32_t time, int now) { return clock(now)[thread] >= time; }
  void touch(Cell& cell, const Request& request, bool must_be_written);
  void check_against_write(Cell& cell, const Request& request);
  void check_against_reads(Cell& cell, const Request& request);
  void remember_read(Cell& cell, const Request& request);
  void check_other_blocks(GlobalCell& cell, const Request& request);
  [[noreturn]] void report(const std::string& text);
  std::string by(int actor) const;
  std::string race(const Request& request, const char* other, Place other_place, int other_actor);

  Block& block_;
  int threads_ = 0;
  int actors_ = 0;  // threads, then the tensor cores of the warpgroups
  uint32_t epoch_ = 0;
  uint32_t launch_ = 0;
  uint32_t block_number_ = 0;
  std::vector<uint32_t> clocks_;
  std::vector<uint32_t> fenced_;  // per thread: its clock at its last fence.proxy.async
  std::vector<Cell> shared_cells_;
  std::unordered_map<const Cell*, std::vector<Reader>> more_readers_;
  std::unordered_map<uint32_t, Phase> phases_;
};

}  // namespace hearth::emulator
