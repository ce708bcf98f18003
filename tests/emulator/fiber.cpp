#include "emulator/fiber.h"

#include <sys/mman.h>
#include <cstdint>
#include <cstring>
#include <new>

// hearth_emulator_switch(void** save, void* load): pushes the callee-saved registers, stores the stack
// pointer, loads the other one, pops its registers and returns there.
#if defined(__x86_64__)
asm(R"(
.text
.globl hearth_emulator_switch
.type hearth_emulator_switch, @function
hearth_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hearth_emulator_switch, .-hearth_emulator_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl hearth_emulator_switch
.type hearth_emulator_switch, %function
hearth_emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "the emulator's context switch is written for x86-64 and aarch64"
#endif

extern "C" void hearth_emulator_switch(void** save, void* load);

namespace hearth::emulator {
namespace {
constexpr size_t guard_bytes = 64 << 10;  // a multiple of every page size in use
}

Fiber::~Fiber() {
  if (mapping_) munmap(mapping_, guard_bytes + stack_bytes);
}

void Fiber::start(void (*entry)(), int stagger) {
  if (!mapping_) {
    void* memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mapping_ = static_cast<char*>(memory);
    mprotect(mapping_, guard_bytes, PROT_NONE);
    stack_ = mapping_ + guard_bytes;
  }
  char* top = stack_ + stack_bytes - static_cast<size_t>(stagger % 61) * 192;
  auto** slot = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
#if defined(__x86_64__)
  *--slot = nullptr;  // where `entry` would return to
  *--slot = reinterpret_cast<void*>(entry);
  for (int saved_register = 0; saved_register < 6; ++saved_register)
    *--slot = nullptr;
#else
  slot -= 20;
  std::memset(slot, 0, 160);
  slot[11] = reinterpret_cast<void*>(entry);  // x30, the return address
#endif
  context_ = slot;
}

void Fiber::switch_to(void*& from, void* to) {
  hearth_emulator_switch(&from, to);
}

}  // namespace hearth::emulator
