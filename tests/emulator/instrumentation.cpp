#include "emulator/instrumentation.h"

#include <cstring>

#include "base/error.h"
#include "emulator/block.h"
#include "emulator/device_memory.h"

extern "C" const char __executable_start[];
extern "C" const char _end[];

namespace hearth::emulator {
namespace {

bool instrumented = false;

bool within(const void* address, const void* begin, size_t bytes) {
  const auto* p = static_cast<const char*>(address);
  const auto* b = static_cast<const char*>(begin);
  return p >= b && p < b + bytes;
}

// threadIdx and its like, which live in the program's thread-local storage.
bool is_thread_local(const void* address) {
  constexpr uintptr_t nearby = 4096;
  const auto anchor = reinterpret_cast<uintptr_t>(&threadIdx);
  return reinterpret_cast<uintptr_t>(address) - (anchor - nearby) < 2 * nearby;
}

// What a thread may touch besides device memory: its own stack, its arguments, constants,
// the built-in variables.
bool is_private(const Block& block, const void* address, bool write) {
  if (block.current->fiber.on_stack(address)) return true;
  if (write) return false;
  return within(address, block.kernel->arguments.get(), block.kernel->argument_bytes) ||
         is_thread_local(address) ||
         within(address, __executable_start, static_cast<size_t>(_end - __executable_start));
}

}  // namespace

bool sees_global_accesses() {
  return instrumented;
}

void raw_access(const void* address, size_t bytes, bool write, const void* program_counter) {
  Block* block = current_block();
  if (!block || !block->current || block->inside_emulator || !block->checker || bytes == 0) return;
  if (is_private(*block, address, write)) return;
  char* shared = block->shared(shared_base);
  if (within(address, shared, shared_limit)) return;  // shared_load and shared_store have reported it
  const Place place(program_counter);
  const std::string what = write ? "write" : "read";
  for (const auto& other : block->threads)
    if (other->fiber.on_stack(address))
      block->fail(what + place.text() + " of a local variable of thread " + std::to_string(other->id), {});
  if (!device_memory().find(address).contains(address, bytes))
    block->fail(text(what, place.text(), " of ", bytes, " bytes ", device_memory().describe(address)), {});
  if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && reinterpret_cast<uintptr_t>(address) % bytes)
    block->fail("misaligned " + what + place.text() + " of " + std::to_string(bytes) + " bytes", {});
  block->checker->global(block->current->id, address, bytes, write ? Access::write : Access::read, place);
}

}  // namespace hearth::emulator

// ---- what the compiler calls.  The sizes must be separate functions, hence the macro.
using hearth::emulator::raw_access;

extern "C" {
void __tsan_init() {
  hearth::emulator::instrumented = true;
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define HEARTH_ACCESS(size)                                  \
  void __tsan_read##size(void* p) {                          \
    raw_access(p, size, false, __builtin_return_address(0)); \
  }                                                          \
  void __tsan_write##size(void* p) {                         \
    raw_access(p, size, true, __builtin_return_address(0));  \
  }                                                          \
  void __tsan_unaligned_read##size(void* p) {                \
    raw_access(p, size, false, __builtin_return_address(0)); \
  }                                                          \
  void __tsan_unaligned_write##size(void* p) {               \
    raw_access(p, size, true, __builtin_return_address(0));  \
  }                                                          \
  void __tsan_volatile_read##size(void* p) {                 \
    raw_access(p, size, false, __builtin_return_address(0)); \
  }                                                          \
  void __tsan_volatile_write##size(void* p) {                \
    raw_access(p, size, true, __builtin_return_address(0));  \
  }                                                          \
  void __tsan_read_write##size(void* p) {                    \
    raw_access(p, size, false, __builtin_return_address(0)); \
    raw_access(p, size, true, __builtin_return_address(0));  \
  }
HEARTH_ACCESS(1)
HEARTH_ACCESS(2)
HEARTH_ACCESS(4)
HEARTH_ACCESS(8)
HEARTH_ACCESS(16)
#undef HEARTH_ACCESS

void __tsan_read_range(void* p, size_t bytes) {
  raw_access(p, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t bytes) {
  raw_access(p, bytes, true, __builtin_return_address(0));
}
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  raw_access(from, bytes, false, __builtin_return_address(0));
  raw_access(to, bytes, true, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  raw_access(from, bytes, false, __builtin_return_address(0));
  raw_access(to, bytes, true, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  raw_access(to, bytes, true, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}

// Atomics of the host code in the same files (shared_ptr, function-local statics).
#define HEARTH_ATOMIC(bits, type)                                                                  \
  type __tsan_atomic##bits##_load(const volatile type* p, int) {                                   \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile type* p, type v, int) {                                \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                \
  type __tsan_atomic##bits##_fetch_add(volatile type* p, type v, int) {                            \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                \
  type __tsan_atomic##bits##_fetch_sub(volatile type* p, type v, int) {                            \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                \
  type __tsan_atomic##bits##_exchange(volatile type* p, type v, int) {                             \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* e, type v, int, int) { \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
  }
HEARTH_ATOMIC(8, uint8_t)
HEARTH_ATOMIC(16, uint16_t)
HEARTH_ATOMIC(32, uint32_t)
HEARTH_ATOMIC(64, uint64_t)
#undef HEARTH_ATOMIC
}
