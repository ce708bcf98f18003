// The scheduler: which thread runs next, what happens when none can.
#include "emulator/block.h"

#include <bit>
#include <cstring>
#include <map>

#include "base/error.h"
#include "emulator/device_memory.h"

namespace hearth::emulator {

Block*& current_block() {
  static thread_local Block* block = nullptr;
  return block;
}

Block& running_block() {
  Block* block = current_block();
  if (!block || !block->current) throw Failure("a device instruction was executed outside of a kernel");
  return *block;
}

// Each fiber runs one thread of one block after another.
void fiber_main() {
  for (;;) {
    Block& block = *current_block();
    block.kernel->thread(block.kernel->arguments.get());
    block.finish_current();
  }
}

Block::Block() : shared_storage_(new char[shared_limit + 1024]) {
  const auto address = reinterpret_cast<uintptr_t>(shared_storage_.get());
  shared_bytes_ = reinterpret_cast<char*>((address + 1023) & ~uintptr_t{1023});
}

Block::~Block() = default;

std::string Block::place(Site site) const {
  return site.file ? std::string(" at ") + site.file + ":" + std::to_string(site.line) : "";
}

std::string Block::describe(int thread) const {
  return text("thread ", thread, " of block (", block_index.x, ",", block_index.y, ",", block_index.z, ")");
}

uint64_t Block::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_;
}

bool Block::completes_now() {
  const Async async = options().async;
  return async == Async::eager || (async == Async::random && random() % 2 == 0);
}

// ---- failing: the message is kept, the fiber is left for good, run() throws on the OS thread's own stack.

void Block::fail(const std::string& what, Site site) {
  if (failure.empty()) failure = what + place(site) + (current ? " [" + describe(current->id) + "]" : "");
  if (!current) throw Failure(failure);
  abandon();
}

void Block::abandon() {
  void* nowhere = nullptr;
  current = nullptr;
  inside_emulator = false;
  Fiber::switch_to(nowhere, main_context_);
  std::abort();  // nobody switches back
}

// ---- the ready set: a mask of warps, and of lanes in each

void Block::wake(int thread) {
  threads[thread]->state = Thread::State::ready;
  warps[thread / lanes_per_warp].ready |= 1u << (thread % lanes_per_warp);
  ready_warps_ |= 1u << (thread / lanes_per_warp);
}

namespace {
int nth_bit(uint32_t mask, uint64_t n) {
  while (n-- > 0)
    mask &= mask - 1;
  return std::countr_zero(mask);
}
int last_bit(uint32_t mask) {
  return 31 - std::countl_zero(mask);
}
}  // namespace

int Block::next_ready() {
  const Order order = options().order;
  // Greedy: the warp that ran last goes on while it can; in random order it sometimes loses its turn.
  if (!(ready_warps_ >> last_warp_ & 1) || (order == Order::random && random() % 2)) {
    last_warp_ = order == Order::random    ? nth_bit(ready_warps_, random() % std::popcount(ready_warps_))
                 : order == Order::reverse ? last_bit(ready_warps_)
                                           : std::countr_zero(ready_warps_);
  }
  uint32_t& lanes = warps[last_warp_].ready;
  const int lane = order == Order::random    ? nth_bit(lanes, random() % std::popcount(lanes))
                   : order == Order::reverse ? last_bit(lanes)
                                             : std::countr_zero(lanes);
  lanes &= ~(1u << lane);
  if (lanes == 0) ready_warps_ &= ~(1u << last_warp_);
  return last_warp_ * lanes_per_warp + lane;
}

void Block::complete_one_in_flight() {
  const bool pick = options().async == Async::random;
  const size_t i = pick ? random() % in_flight.size() : 0;
  auto operation = std::move(in_flight[i]);
  in_flight.erase(in_flight.begin() + static_cast<ptrdiff_t>(i));
  operation();
}

// Continues with some other thread, or with the OS thread's own stack when none can run.
void Block::schedule(Thread* leaving) {
  if (options().async == Async::random && !in_flight.empty() && random() % 4 == 0) complete_one_in_flight();
  while (ready_warps_ == 0 && !in_flight.empty())
    complete_one_in_flight();
  Thread* next = ready_warps_ ? threads[next_ready()].get() : nullptr;
  if (next == leaving) return;
  current = next;
  if (next) threadIdx = next->index;
  Fiber::switch_to(leaving->fiber.context(), next ? next->fiber.context() : main_context_);
}

void Block::wait(const char* reason, Site site) {
  Thread* self = current;
  self->state = Thread::State::waiting;
  self->waits_for = reason;
  self->site = site;
  schedule(self);
}

void Block::check_nothing_left(const Thread& thread) {
  const AsyncCopy* copy = thread.copies.empty() ? nullptr : &thread.copies.front();
  for (const auto& group : thread.copy_groups)
    if (!group.empty()) copy = &group.front();
  if (copy) fail("the thread ends with cp.async in flight (no wait_group)", copy->site);
  bool reading = !thread.stores.empty();
  for (const auto& group : thread.store_groups)
    for (const auto& store : group)
      reading |= !store.read_done;
  if (reading) fail("the thread ends while its TMA store still reads shared memory (no bulk wait_group)", {});
  const WgmmaQueue& wgmma = warps[thread.warp].wgmma;
  if (wgmma.waited < wgmma.issued) fail("the warp ends with wgmma in flight (no wait_group)", {});
}

void Block::finish_current() {
  Thread& self = *current;
  check_nothing_left(self);
  // Stores whose reads were waited for reach global memory at the latest when the kernel ends.
  for (auto& group : self.store_groups)
    for (auto& store : group)
      store.write();
  self.store_groups.clear();
  self.state = Thread::State::finished;
  self.parked = true;
  ++finished;
  schedule(&self);
}

std::string Block::deadlock_report() const {
  std::map<std::string, std::pair<int, int>> groups;  // what and where -> number of threads, the first
  for (int i = 0; i < thread_count; ++i) {
    const Thread& thread = *threads[i];
    if (thread.state != Thread::State::waiting) continue;
    auto [entry, is_new] = groups.try_emplace(thread.waits_for + place(thread.site), 0, i);
    ++entry->second.first;
  }
  std::string report =
      text("deadlock in block (", block_index.x, ",", block_index.y, ",", block_index.z, "):");
  for (const auto& [what, who] : groups)
    report += text(" ", who.first, " threads (first ", who.second, ") wait for ", what, ";");
  return report + text(" ", finished, " threads have ended");
}

void Block::prepare(const Kernel& launched, uint32_t launch_number, int64_t number) {
  kernel = &launched;
  block_number = number;
  const dim3& g = launched.grid;
  block_index = {static_cast<unsigned>(number % g.x), static_cast<unsigned>(number / g.x % g.y),
                 static_cast<unsigned>(number / g.x / g.y)};
  blockIdx = block_index;
  blockDim = launched.block;
  gridDim = launched.grid;
  thread_count = static_cast<int>(launched.block.x * launched.block.y * launched.block.z);
  dynamic_bytes = static_cast<uint32_t>(launched.shared_bytes);
  if (options().poison) std::memset(shared_bytes_, 0xff, dynamic_bytes);

  while (static_cast<int>(threads.size()) < thread_count)
    threads.push_back(std::make_unique<Thread>());
  warps.assign((thread_count + lanes_per_warp - 1) / lanes_per_warp, {});
  for (auto& barrier : barriers)
    barrier = {};
  mbarriers.clear();
  in_flight.clear();
  finished = 0;
  ready_warps_ = 0;
  last_warp_ = 0;
  failure.clear();
  inside_emulator = false;
  // The same bits whichever OS thread runs which block.
  random_state_ =
      (options().seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(number) * 0xBF58476D1CE4E5B9u) | 1;

  for (int i = 0; i < thread_count; ++i) {
    Thread& thread = *threads[i];
    thread.id = i;
    thread.lane = i % lanes_per_warp;
    thread.warp = i / lanes_per_warp;
    const dim3& b = launched.block;
    const auto u = static_cast<unsigned>(i);
    thread.index = {u % b.x, u / b.x % b.y, u / b.x / b.y};
    if (!thread.parked) thread.fiber.start(fiber_main, i);
    thread.parked = false;
    thread.copies.clear();
    thread.copy_groups.clear();
    thread.stores.clear();
    thread.store_groups.clear();
    wake(i);
  }
  warps.back().lanes = thread_count - static_cast<int>(warps.size() - 1) * lanes_per_warp;

  if (options().check && !checker_storage) checker_storage = std::make_unique<Checker>(*this);
  checker = options().check ? checker_storage.get() : nullptr;
  if (checker) checker->begin_block(launch_number, number, thread_count);
}

void Block::run(const Kernel& launched, uint32_t launch_number, int64_t number) {
  current_block() = this;
  prepare(launched, launch_number, number);
  while (failure.empty() && finished < thread_count) {
    while (ready_warps_ == 0 && !in_flight.empty())
      complete_one_in_flight();
    if (ready_warps_ == 0) {
      failure = deadlock_report();
      break;
    }
    current = threads[next_ready()].get();
    threadIdx = current->index;
    Fiber::switch_to(main_context_, current->fiber.context());
    current = nullptr;
  }
  current_block() = nullptr;
  ++counted.blocks;
  if (!failure.empty()) throw Failure(failure);
}

char* Block::shared_range(uint32_t address, uint32_t bytes, const char* what, Site site) {
  if (address < shared_base || address + bytes > shared_base + dynamic_bytes)
    fail(std::string(what) + " of " + std::to_string(bytes) + " bytes at shared-memory offset " +
             std::to_string(static_cast<int64_t>(address) - shared_base) + ", outside of the block's " +
             std::to_string(dynamic_bytes) + " bytes",
         site);
  return shared(address);
}

// ---- memory access by the kernel

void* shared_access(uint32_t address, uint32_t bytes, Access access, Site site) {
  Block& block = running_block();
  char* memory = block.shared_range(address, bytes, access == Access::read ? "read" : "write", site);
  if (address % bytes)
    block.fail("misaligned access of " + std::to_string(bytes) + " bytes to shared memory", site);
  if (block.checker)
    block.checker->shared(block.current->id, address, bytes, access, Proxy::generic, Place(site));
  return memory;
}

void check_global(Block& block, const void* address, size_t bytes, Access access, const char* what,
                  Site site) {
  DeviceMemory& memory = device_memory();
  if (!memory.find(address).contains(address, bytes))
    block.fail(text(what, access == Access::read ? " reads " : " writes ", bytes, " bytes ",
                    memory.describe(address)),
               site);
  if (block.checker) block.checker->global(block.current->id, address, bytes, access, Place(site));
}

void global_access(const void* address, uint32_t bytes, Access access, Site site) {
  Block& block = running_block();
  if (reinterpret_cast<uintptr_t>(address) % bytes)
    block.fail("misaligned access of " + std::to_string(bytes) + " bytes to global memory", site);
  check_global(block, address, bytes, access, "the kernel", site);
}

uint32_t shared_memory() {
  return shared_base;
}

void fail(const std::string& what, Site site) {
  running_block().fail(what, site);
}

void set_register_count(int count, Site site) {
  Block& block = running_block();
  Warp& warp = block.warps[block.current->warp];
  warp.registers = count;
  // Once every warp has said what it wants, the sum must fit the register file of a multiprocessor.
  int64_t total = 0;
  for (const Warp& each : block.warps) {
    if (each.registers == 0) return;
    total += int64_t{each.registers} * lanes_per_warp;
  }
  if (total > 65536)
    block.fail("setmaxnreg asks for " + std::to_string(total) + " registers, 65536 exist", site);
}

}  // namespace hearth::emulator
