#include "emulator/checker.h"

#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cstdio>

#include "base/error.h"
#include "emulator/block.h"
#include "emulator/device_memory.h"

// The program's image, by the linker: file names and code addresses are kept as offsets from its start.
extern "C" const char __executable_start[];

namespace hearth::emulator {
namespace {

enum Flag : uint16_t {
  written = 1,
  read_once = 2,
  read_twice = 4,
  read_by_many = 8,
  in_flight = 16,      // target of an asynchronous copy
  generic_write = 32,  // the last write came through the generic proxy
  generic_read = 64,   // some read since then did
};

constexpr uint32_t cell_bytes = 2;  // one bf16

constexpr uint64_t is_code = uint64_t{1} << 63;
constexpr int line_bits = 20;

std::string source_line(uint64_t offset) {
  char command[256];
  std::snprintf(command, sizeof command, "addr2line -i -e /proc/%d/exe 0x%llx 2>/dev/null",
                static_cast<int>(getpid()), static_cast<unsigned long long>(offset - 1));
  std::string found;
  FILE* pipe = popen(command, "r");
  if (!pipe) return found;
  // The innermost frame that is not one of the emulator's own headers.
  char line[512];
  while (std::fgets(line, sizeof line, pipe)) {
    found = line;
    while (!found.empty() && (found.back() == '\n' || found.back() == ' '))
      found.pop_back();
    if (found.find("emulator/simt.h") == std::string::npos &&
        found.find("kernels/simt.cuh") == std::string::npos)
      break;
  }
  pclose(pipe);
  return found;
}

template <class T>
T* reserve(size_t count) {
  void* memory = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<T*>(memory);
}

}  // namespace

Place::Place(Site site) {
  if (!site.file) return;
  code_ =
      static_cast<uint64_t>(site.file - __executable_start) << line_bits | static_cast<uint64_t>(site.line);
}

Place::Place(const void* program_counter)
    : code_(is_code | static_cast<uint64_t>(static_cast<const char*>(program_counter) - __executable_start)) {
}

std::string Place::text() const {
  if (code_ == 0) return "";
  if (code_ & is_code) return " at " + source_line(code_ & ~is_code);
  return std::string(" at ") + (__executable_start + (code_ >> line_bits)) + ":" +
         std::to_string(code_ & ((1u << line_bits) - 1));
}

Checker::Checker(Block& block) : block_(block), shared_cells_(shared_limit / cell_bytes) {}

void Checker::begin_block(uint32_t launch_number, int64_t block_number, int threads) {
  ++epoch_;
  launch_ = launch_number;
  block_number_ = static_cast<uint32_t>(block_number) + 1;
  threads_ = threads;
  constexpr int group = lanes_per_warp * warps_per_group;
  actors_ = threads + (threads + group - 1) / group;
  clocks_.assign(static_cast<size_t>(actors_) * actors_, 0);
  fenced_.assign(threads, 0);
  for (int i = 0; i < threads; ++i)
    clock(i)[i] = 1;
  more_readers_.clear();
  phases_.clear();
}

// ---- order

void Checker::join(std::span<const int> participants) {
  std::vector<uint32_t> latest(actors_);
  for (int thread : participants)
    for (int i = 0; i < actors_; ++i)
      latest[i] = std::max(latest[i], clock(thread)[i]);
  for (int thread : participants) {
    std::copy(latest.begin(), latest.end(), clock(thread));
    ++clock(thread)[thread];
  }
}

void Checker::release(uint32_t barrier, int thread) {
  auto& gathering = phases_[barrier].gathering;
  gathering.resize(actors_);
  for (int i = 0; i < actors_; ++i)
    gathering[i] = std::max(gathering[i], clock(thread)[i]);
  ++clock(thread)[thread];
}

void Checker::complete_phase(uint32_t barrier) {
  phases_[barrier].completed = phases_[barrier].gathering;
}

void Checker::acquire(uint32_t barrier, int thread) {
  auto& completed = phases_[barrier].completed;
  completed.resize(actors_);
  for (int i = 0; i < actors_; ++i)
    clock(thread)[i] = std::max(clock(thread)[i], completed[i]);
}

void Checker::proxy_fence(int thread) {
  fenced_[thread] = clock(thread)[thread];
  ++clock(thread)[thread];  // later writes are not covered
}

int Checker::begin_tensor_core(int warp, int64_t number) {
  const int actor = threads_ + warp / warps_per_group;
  uint32_t* now = clock(actor);
  // What any lane of the issuing warp knows, the product knows: its lanes execute the instruction together.
  std::fill(now, now + actors_, 0);
  for (int lane = 0; lane < lanes_per_warp; ++lane) {
    const uint32_t* theirs = clock(warp * lanes_per_warp + lane);
    for (int i = 0; i < actors_; ++i)
      now[i] = std::max(now[i], theirs[i]);
  }
  now[actor] = static_cast<uint32_t>(number) + 1;
  return actor;
}

void Checker::wait_for_tensor_core(int thread, int64_t number) {
  const int actor = threads_ + thread / (lanes_per_warp * warps_per_group);
  clock(thread)[actor] = std::max(clock(thread)[actor], static_cast<uint32_t>(number));
}

// ---- reports

void Checker::report(const std::string& text) {
  if (block_.failure.empty()) block_.failure = text + " [" + block_.describe(block_.current->id) + "]";
  block_.abandon();
}

std::string Checker::by(int actor) const {
  if (actor < threads_) return text(" by thread ", actor);
  return text(" by wgmma of warpgroup ", actor - threads_);
}

std::string Checker::race(const Request& request, const char* other, Place other_place, int other_actor) {
  const char* access = request.access == Access::write ? "write" : "read";
  return text("race on ", request.space, " memory at offset ", request.offset, ": ", access,
              request.place.text(), by(request.thread), " and ", other, other_place.text(), by(other_actor),
              " are not ordered");
}

// ---- accesses

void Checker::check_against_write(Cell& cell, const Request& request) {
  if (cell.flags & in_flight)
    report(std::string(request.access == Access::write ? "write" : "read") + request.place.text() + " to " +
           request.space + " memory at offset " + std::to_string(request.offset) +
           " while the copy into it is in flight (issued" + cell.write_place.text() + " by thread " +
           std::to_string(cell.writer) + ")");
  if (!(cell.flags & written)) return;
  if (!happened_before(cell.writer, cell.write_clock, request.thread))
    report(race(request, "write", cell.write_place, cell.writer));
  if (request.proxy == Proxy::async && (cell.flags & generic_write) &&
      fenced_[cell.writer] < cell.write_clock)
    report(std::string("asynchronous ") + (request.access == Access::write ? "write" : "read") +
           request.place.text() + " of " + request.space + " memory at offset " +
           std::to_string(request.offset) + " that thread " + std::to_string(cell.writer) + " wrote" +
           cell.write_place.text() + " without fence.proxy.async since");
}

void Checker::check_against_reads(Cell& cell, const Request& request) {
  const bool across_proxies = request.proxy == Proxy::async && (cell.flags & generic_read);
  auto check = [&](int thread, uint32_t time) {
    if (!happened_before(thread, time, request.thread))
      report(race(request, "read", cell.read_place, thread));
    if (across_proxies && thread < threads_ && fenced_[thread] < time)
      report("asynchronous write" + request.place.text() + " over " + request.space + " memory at offset " +
             std::to_string(request.offset) + " that thread " + std::to_string(thread) + " read" +
             cell.read_place.text() + " without fence.proxy.async since");
  };
  if (cell.flags & read_once) check(cell.reader[0], cell.read_clock[0]);
  if (cell.flags & read_twice) check(cell.reader[1], cell.read_clock[1]);
  if (cell.flags & read_by_many)
    for (const Reader& each : more_readers_[&cell])
      check(each.thread, each.clock);
}

void Checker::remember_read(Cell& cell, const Request& request) {
  const auto thread = static_cast<uint16_t>(request.thread);
  const uint32_t now = clock(request.thread)[request.thread];
  if (request.proxy == Proxy::generic) cell.flags |= generic_read;
  cell.read_place = request.place;
  for (int i = 0; i < 2; ++i) {
    const uint16_t used = i == 0 ? read_once : read_twice;
    if ((cell.flags & used) && cell.reader[i] != thread) continue;
    cell.reader[i] = thread;
    cell.read_clock[i] = now;
    cell.flags |= used;
    return;
  }
  cell.flags |= read_by_many;
  auto& readers = more_readers_[&cell];
  for (Reader& each : readers)
    if (each.thread == thread) {
      each.clock = now;
      return;
    }
  readers.push_back({thread, now});
}

void Checker::touch(Cell& cell, const Request& request, bool must_be_written) {
  if (cell.epoch != epoch_) {
    cell.epoch = epoch_;
    cell.flags = 0;
  }
  check_against_write(cell, request);
  if (request.access == Access::read) {
    if (must_be_written && !(cell.flags & written))
      report("read" + request.place.text() + " of " + request.space + " memory at offset " +
             std::to_string(request.offset) + " that nobody has written");
    remember_read(cell, request);
    return;
  }
  check_against_reads(cell, request);
  if (cell.flags & read_by_many) more_readers_.erase(&cell);
  cell.flags = written | (request.proxy == Proxy::generic ? generic_write : 0);
  cell.writer = static_cast<uint16_t>(request.thread);
  cell.write_clock = clock(request.thread)[request.thread];
  cell.write_place = request.place;
}

void Checker::shared(int thread, uint32_t address, uint32_t bytes, Access access, Proxy proxy, Place place) {
  const uint32_t first = (address - shared_base) / cell_bytes;
  const uint32_t last = (address - shared_base + bytes - 1) / cell_bytes;
  for (uint32_t i = first; i <= last; ++i)
    touch(shared_cells_[i], {thread, access, proxy, place, "shared", i * cell_bytes}, true);
}

void Checker::begin_copy(int thread, uint32_t address, uint32_t bytes, Proxy proxy, Place place) {
  shared(thread, address, bytes, Access::write, proxy, place);
  for (uint32_t i = 0; i < bytes / cell_bytes; ++i)
    shared_cells_[(address - shared_base) / cell_bytes + i].flags |= in_flight;
}

void Checker::end_copy(int thread, uint32_t address, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes / cell_bytes; ++i) {
    Cell& cell = shared_cells_[(address - shared_base) / cell_bytes + i];
    cell.flags &= ~in_flight;
    if (thread >= 0) cell.write_clock = clock(thread)[thread];
  }
}

// Blocks of one launch have no order at all.
void Checker::check_other_blocks(GlobalCell& cell, const Request& request) {
  if (cell.launch != launch_) {
    cell.launch = launch_;
    cell.writing_block = cell.reading_block = 0;
    cell.many_readers = false;
  }
  const bool writes = request.access == Access::write;
  const bool other_wrote = cell.writing_block && cell.writing_block != block_number_;
  const bool other_read = cell.many_readers || (cell.reading_block && cell.reading_block != block_number_);
  if (other_wrote || (writes && other_read))
    report(std::string("race on global memory at offset ") + std::to_string(request.offset) +
           " of its allocation between two blocks: " + (writes ? "write" : "read") + request.place.text() +
           (other_wrote ? ", written by block " + std::to_string(cell.writing_block - 1)
                        : ", read by block " + std::to_string(cell.reading_block - 1)));
  if (writes)
    cell.writing_block = block_number_;
  else if (cell.reading_block && cell.reading_block != block_number_)
    cell.many_readers = true;
  else
    cell.reading_block = block_number_;
}

void Checker::global(int thread, const void* address, size_t bytes, Access access, Place place) {
  static GlobalCell* const cells = reserve<GlobalCell>(DeviceMemory::reserved_bytes / cell_bytes);
  DeviceMemory& memory = device_memory();
  const size_t start = memory.offset(memory.find(address).begin);
  const size_t first = memory.offset(address) / cell_bytes;
  const size_t last = (memory.offset(address) + bytes - 1) / cell_bytes;
  for (size_t i = first; i <= last; ++i) {
    const Request request{thread, access, Proxy::generic, place, "global", i * cell_bytes - start};
    check_other_blocks(cells[i], request);
    touch(cells[i].cell, request, false);
  }
}

}  // namespace hearth::emulator
