// PTX instructions of sm_90a: mbarrier, TMA, wgmma and what belongs to them.  See ptx.cuh for the
// conventions.
//
// A kernel that uses them exists in every compilation, but works only where sm_90a's code was compiled:
// elsewhere each of these functions is a trap.  How they fit together:
//
//   TMA load -> mbarrier_wait -> ldmatrix or wgmma: no fence.
//   shared_store or stmatrix -> fence_proxy_async by every writing thread -> barrier -> TMA store or wgmma.
//   shared_load or ldmatrix -> fence_proxy_async by every reader -> barrier -> TMA load into the same bytes.
//   TMA store -> bulk_commit -> bulk_wait_read before its shared memory is written again or the kernel ends.
#pragma once

#include "kernels/ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HEARTH_ASM_SM90(...) asm volatile(__VA_ARGS__)
#else
#define HEARTH_ASM_SM90(...) asm volatile("trap;")
#endif

namespace hearth {

// What cuTensorMapEncodeTiled makes: a tensor in global memory, a box, a swizzle.  A kernel takes it by
// value, as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

namespace ptx {

// ---- mbarrier: 8 bytes of shared memory, aligned to 8.  Its phase ends when `arrivals` threads have arrived
// and all expected bytes have come.  Phases are numbered from 0; a fresh barrier counts as "phase of parity 1
// has ended".

__device__ __forceinline__ void mbarrier_init(SharedAddress barrier, uint32_t arrivals,
                                              Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#else
  emulator::mbarrier_init(barrier, arrivals, site);
#endif
}
// After the initialisations, by the thread that made them, before the barrier that publishes them.
__device__ __forceinline__ void fence_mbarrier_init() {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive(SharedAddress barrier, Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#else
  emulator::mbarrier_arrive(barrier, site);
#endif
}
// Arrives, and makes the phase wait for `bytes` more bytes of TMA loads.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(SharedAddress barrier, uint32_t bytes,
                                                          Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                  : "memory");
#else
  emulator::mbarrier_arrive_expect_tx(barrier, bytes, site);
#endif
}
// Waits until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait(SharedAddress barrier, uint32_t parity,
                                              Site site = Site::here()) {
#if defined(__CUDACC__)
  uint32_t ended = 0;
  while (!ended) {
    HEARTH_ASM_SM90(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
#else
  emulator::mbarrier_wait(barrier, parity, site);
#endif
}

// Makes this thread's accesses to shared memory visible to (and ordered before) TMA and wgmma.
__device__ __forceinline__ void fence_proxy_async() {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emulator::fence_proxy_async();
#endif
}

// ---- TMA: one thread moves a whole box.  Coordinates are in elements, the contiguous dimension (column)
// first. What lies outside the tensor reads as zero, counted as delivered, and is not written.

__device__ __forceinline__ void tma_load_2d(SharedAddress to, const TensorMap& map, SharedAddress barrier,
                                            int column, int row, Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
#else
  emulator::tma_load_2d(to, &map, barrier, column, row, site);
#endif
}
__device__ __forceinline__ void tma_store_2d(const TensorMap& map, SharedAddress from, int column, int row,
                                             Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
      "r"(from), "r"(column), "r"(row)
      : "memory");
#else
  emulator::tma_store_2d(&map, from, column, row, site);
#endif
}
// Closes a group of this thread's TMA stores.
__device__ __forceinline__ void bulk_commit() {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("cp.async.bulk.commit_group;" ::: "memory");
#else
  emulator::bulk_commit();
#endif
}
// Waits until all but the youngest `groups` groups have read their shared memory.
template <int groups>
__device__ __forceinline__ void bulk_wait_read() {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
#else
  emulator::bulk_wait(groups, true);
#endif
}

// ---- stmatrix: the inverse of ldmatrix_x4: lane p gives the address of row p % 8 of matrix p / 8.
__device__ __forceinline__ void stmatrix_x4(SharedAddress row, const uint32_t (&r)[4],
                                            Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]),
                  "r"(r[1]), "r"(r[2]), "r"(r[3])
                  : "memory");
#else
  emulator::stmatrix(4, false, row, r, site);
#endif
}

// ---- registers

// Registers per thread, for all warps of a warpgroup: a multiple of 8 from 24 to 256.  The kernel needs
// __launch_bounds__(threads, 1).
template <int count>
__device__ __forceinline__ void setmaxnreg_increase(Site site = Site::here()) {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#else
  emulator::set_register_count(count, site);
#endif
}
template <int count>
__device__ __forceinline__ void setmaxnreg_decrease(Site site = Site::here()) {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#else
  emulator::set_register_count(count, site);
#endif
}

// ---- wgmma: d (+)= a b by the 128 threads of a warpgroup; a is 64x16, b is 16xN, in shared memory
//
// A tile of bf16 with the 128-byte swizzle, at a multiple of 1024 bytes:
//   K-major (16 or more columns of k contiguous): rows of 128 bytes = 64 k; stride_bytes = 1024 is the step
//     from one group of 8 rows to the next; the next 16 columns of k start 32 bytes further.
//   MN-major (rows and columns exchanged): panels of 64 mn, each k row 128 bytes; stride_bytes = 1024 is the
//     step from 8 k rows to the next 8; leading_bytes the step from one panel to the next; the next 16 k
//     start 2048 bytes further.
__device__ __forceinline__ uint64_t matrix_descriptor(SharedAddress tile, uint32_t leading_bytes,
                                                      uint32_t stride_bytes = 1024) {
  constexpr uint64_t swizzle_128_bytes = uint64_t{1} << 62;
  return static_cast<uint64_t>((tile & 0x3ffff) >> 4) | static_cast<uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4) << 32 | swizzle_128_bytes;
}

// Before the first wgmma of a series, and after accumulators were written.
__device__ __forceinline__ void wgmma_fence(Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("wgmma.fence.sync.aligned;" ::: "memory");
#else
  emulator::wgmma_fence(site);
#endif
}
__device__ __forceinline__ void wgmma_commit(Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emulator::wgmma_commit(site);
#endif
}
// Waits until at most the youngest `groups` groups are in flight;
// before that nobody may touch their accumulators.
template <int groups>
__device__ __forceinline__ void wgmma_wait(Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
#else
  emulator::wgmma_wait(groups, site);
#endif
}
// Keeps the compiler from moving accesses of the accumulators across a series of wgmma.
template <int count>
__device__ __forceinline__ void pin_registers(float (&d)[count]) {
#if defined(__CUDACC__)
#pragma unroll
  for (int i = 0; i < count; ++i)
    asm volatile("" : "+f"(d[i])::"memory");
#else
  (void)d;
#endif
}

// Accumulator i of thread w * 32 + 4 g + t of the warpgroup: row 16 w + g + 8 (i / 2 % 2), column
// 8 (i / 4) + 2 t + i % 2.  With accumulate = false d is overwritten.  The descriptors are the same in all
// threads.  Kernels use N = 256; 64 is small enough for tests.

#define HEARTH_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HEARTH_D16(i) HEARTH_D4(i), HEARTH_D4(i + 4), HEARTH_D4(i + 8), HEARTH_D4(i + 12)
#define HEARTH_D32(i) HEARTH_D16(i), HEARTH_D16(i + 16)

template <bool a_mn_major, bool b_mn_major>
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b, bool accumulate,
                                                Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, %35, %36;\n"
      "}"
      : HEARTH_D32(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(int{a_mn_major}), "n"(int{b_mn_major}));
#else
  emulator::wgmma({64, d, nullptr, a, b, accumulate, a_mn_major, b_mn_major}, site);
#endif
}
template <bool a_mn_major, bool b_mn_major>
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b, bool accumulate,
                                                 Site site = Site::here()) {
#if defined(__CUDACC__)
  HEARTH_ASM_SM90(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
      "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "
      "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "
      "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "
      "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, %131, %132;\n"
      "}"
      : HEARTH_D32(0), HEARTH_D32(32), HEARTH_D32(64), HEARTH_D32(96)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(int{a_mn_major}), "n"(int{b_mn_major}));
#else
  emulator::wgmma({256, d, nullptr, a, b, accumulate, a_mn_major, b_mn_major}, site);
#endif
}

#undef HEARTH_D4
#undef HEARTH_D16
#undef HEARTH_D32
#undef HEARTH_ASM_SM90

}  // namespace ptx
}  // namespace hearth
