// What a kernel sees when it is compiled by the host compiler: CUDA's words, and the emulator's entry points
// behind kernels/simt.cuh and kernels/ptx.cuh.  Only those two headers include this one.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>

#include "cuda_runtime_api.h"
#include "emulator/site.h"

// CUDA's qualifiers mean nothing here.  (__noinline__ must stay alone: libstdc++ writes
// __attribute__((__noinline__)).)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;

namespace hearth::emulator {

enum class Access : uint8_t { read, write };

// ---- memory.  Each call checks bounds and alignment and tells the race detector.
// The bytes behind a shared-memory address.
void* shared_access(uint32_t address, uint32_t bytes, Access access, Site site);
void global_access(const void* address, uint32_t bytes, Access access, Site site);
uint32_t shared_memory();  // address of the first byte of dynamic shared memory

// ---- threads
void block_barrier(Site site);                                  // __syncthreads
void named_barrier(int id, int threads, bool wait, Site site);  // bar.sync, bar.arrive
void warp_barrier(uint32_t mask, Site site);                    // __syncwarp
void set_register_count(int count, Site site);                  // setmaxnreg
[[noreturn]] void fail(const std::string& what, Site site);

// A warp collective: each lane hands over its operands; the last lane to arrive computes all of them.
struct WarpOperation {
  void (*execute)(WarpOperation* const* lanes, uint32_t mask);
};
void warp_collective(uint32_t mask, WarpOperation& operation, Site site);

// Lane l receives the value of lane source(l, argument); an out-of-range source gives its own value back.
template <class T, class Source>
T shuffle(uint32_t mask, T value, int argument, Source source, Site site) {
  struct Operation : WarpOperation {
    T in, out;
    int argument;
    Source* source;
    Site site;
  };
  Operation operation{{}, value, value, argument, &source, site};
  operation.execute = [](WarpOperation* const* lanes, uint32_t mask) {
    for (int lane = 0; lane < 32; ++lane) {
      if (!(mask >> lane & 1)) continue;
      auto* mine = static_cast<Operation*>(lanes[lane]);
      const int from = (*mine->source)(lane, mine->argument);
      if (from < 0 || from > 31) continue;
      if (!(mask >> from & 1)) fail("shuffle reads a lane that is not in its mask", mine->site);
      mine->out = static_cast<Operation*>(lanes[from])->in;
    }
  };
  warp_collective(mask, operation, site);
  return operation.out;
}
uint32_t ballot(uint32_t mask, bool predicate, Site site);

// ---- tensor cores, sm_80
void ldmatrix(int matrices, bool transposed, uint32_t row_address, uint32_t* registers, Site site);
void stmatrix(int matrices, bool transposed, uint32_t row_address, const uint32_t* registers, Site site);
void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, Site site);
void cp_async16(uint32_t to, const void* from, uint32_t source_bytes, Site site);
void cp_async_commit();
void cp_async_wait(int groups_in_flight);

// ---- sm_90
void mbarrier_init(uint32_t barrier, uint32_t arrivals, Site site);
void mbarrier_arrive(uint32_t barrier, Site site);
void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes, Site site);
void mbarrier_wait(uint32_t barrier, uint32_t parity, Site site);
void fence_proxy_async();
void tma_load_2d(uint32_t to, const void* tensor_map, uint32_t barrier, int column, int row, Site site);
void tma_store_2d(const void* tensor_map, uint32_t from, int column, int row, Site site);
void bulk_commit();
void bulk_wait(int groups_in_flight, bool reads_only);
struct WgmmaOperands {
  int columns;         // N of m64nNk16
  float* accumulator;  // N / 2 registers
  const uint32_t* a;   // 4 registers, or null: A comes from a_descriptor
  uint64_t a_descriptor;
  uint64_t b_descriptor;
  bool accumulate;  // scale-d
  bool a_mn_major;
  bool b_mn_major;
};
void wgmma(const WgmmaOperands& operands, Site site);
void wgmma_fence(Site site);
void wgmma_commit(Site site);
void wgmma_wait(int groups_in_flight, Site site);

// ---- launch
struct Kernel {
  const void* function;
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  void (*thread)(const void* arguments);  // runs one thread of the kernel
  std::shared_ptr<const void> arguments;  // host memory that a kernel may read, as it may on a GPU
  size_t argument_bytes;
};
void enqueue(cudaStream_t stream, Kernel kernel);

template <class... P>
Kernel bind(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
            std::type_identity_t<P>... arguments) {
  struct Call {
    void (*kernel)(P...);
    std::tuple<std::remove_cv_t<P>...> arguments;
  };
  auto thread = [](const void* held) {
    const Call& call = *static_cast<const Call*>(held);
    std::apply(call.kernel, call.arguments);
  };
  const auto* function = reinterpret_cast<const void*>(kernel);
  return {function,     grid,   block,
          shared_bytes, thread, std::make_shared<const Call>(Call{kernel, {arguments...}}),
          sizeof(Call)};
}

}  // namespace hearth::emulator

// ---- CUDA's device functions
inline void __syncthreads(hearth::Site site = hearth::Site::here()) {
  hearth::emulator::block_barrier(site);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, hearth::Site site = hearth::Site::here()) {
  hearth::emulator::warp_barrier(mask, site);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, hearth::Site site = hearth::Site::here()) {
  return hearth::emulator::shuffle(
      mask, value, lane, [](int, int from) { return from & 31; }, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, hearth::Site site = hearth::Site::here()) {
  return hearth::emulator::shuffle(
      mask, value, bits, [](int lane, int x) { return lane ^ x; }, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, hearth::Site site = hearth::Site::here()) {
  return hearth::emulator::shuffle(
      mask, value, static_cast<int>(delta), [](int lane, int d) { return lane + d; }, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, hearth::Site site = hearth::Site::here()) {
  return hearth::emulator::shuffle(
      mask, value, static_cast<int>(delta), [](int lane, int d) { return lane - d; }, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, hearth::Site site = hearth::Site::here()) {
  return hearth::emulator::ballot(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, hearth::Site site = hearth::Site::here()) {
  return hearth::emulator::ballot(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, hearth::Site site = hearth::Site::here()) {
  return hearth::emulator::ballot(mask, predicate == 0, site) == 0;
}
inline void __threadfence() {}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
using std::max;
using std::min;
