// Fibers: one stack per CUDA thread, switched by a few instructions.  (ucontext would make a system call per
// switch, a hundred times slower.)
#pragma once

#include <cstddef>

namespace hearth::emulator {

class Fiber {
 public:
  static constexpr size_t stack_bytes = 128 << 10;

  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // Makes the next switch_to() start `entry`, which must never return.  Whatever ran here is forgotten.
  // `stagger` shifts the stack by some cache lines,
  // so that equal frames of many fibers do not evict each other.
  void start(void (*entry)(), int stagger);
  bool on_stack(const void* address) const {
    const char* p = static_cast<const char*>(address);
    return p >= stack_ && p < stack_ + stack_bytes;
  }

  // Saves the running context in `from` and continues `to`.
  static void switch_to(void*& from, void* to);
  void*& context() { return context_; }

 private:
  char* mapping_ = nullptr;
  char* stack_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace hearth::emulator
