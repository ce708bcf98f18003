// PTX instructions of sm_80 and up, one function each: inline PTX for the GPU, a call of the emulator for the
// CPU.
//
// Names are PTX's.  `Site site = Site::here()` tells the emulator where the call stands; it costs nothing on
// the GPU.  Lane l of a warp, g = l / 4, t = l % 4.  sm_90's instructions are in ptx_sm90.cuh.
#pragma once

#include "kernels/simt.cuh"

namespace hearth::ptx {

// ---- arithmetic

// 2^x, log2(x), 1/x, 1/sqrt(x), each within about 2 ulp; subnormals are flushed to zero.
__device__ __forceinline__ float ex2(float x) {
#if defined(__CUDACC__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}
__device__ __forceinline__ float lg2(float x) {
#if defined(__CUDACC__)
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::log2(x);
#endif
}
__device__ __forceinline__ float rcp(float x) {
#if defined(__CUDACC__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}
__device__ __forceinline__ float rsqrt(float x) {
#if defined(__CUDACC__)
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / std::sqrt(x);
#endif
}

// Two floats rounded to bf16 (nearest, ties to even) in one register: `low` in bits 0-15.
__device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
#if defined(__CUDACC__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return bf16(low).bits | static_cast<uint32_t>(bf16(high).bits) << 16;
#endif
}
__device__ __forceinline__ bf16 cvt_bf16(float x) {
#if defined(__CUDACC__)
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  return bf16(x);
#endif
}

// ---- streaming global access: 16 bytes that will not be needed again soon (evict-first in L1 and L2)

template <class T>
__device__ __forceinline__ Vector<T> load16_streaming(const T* address, Site site = Site::here()) {
#if defined(__CUDACC__)
  const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(address));
  return *reinterpret_cast<const Vector<T>*>(&bits);
#else
  return load16(address, site);
#endif
}
template <class T>
__device__ __forceinline__ void store16_streaming(T* address, const Vector<T>& value,
                                                  Site site = Site::here()) {
#if defined(__CUDACC__)
  __stcs(reinterpret_cast<uint4*>(address), *reinterpret_cast<const uint4*>(&value));
#else
  store16(address, value, site);
#endif
}

// ---- barriers among some of a block's warps.  Barrier 0 is __syncthreads(); ids 1-15 are free.

// Waits until `threads` threads (a multiple of 32) have arrived at barrier `id`.
__device__ __forceinline__ void bar_sync(int id, int threads, Site site = Site::here()) {
#if defined(__CUDACC__)
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  emulator::named_barrier(id, threads, true, site);
#endif
}
// Arrives without waiting.
__device__ __forceinline__ void bar_arrive(int id, int threads, Site site = Site::here()) {
#if defined(__CUDACC__)
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  emulator::named_barrier(id, threads, false, site);
#endif
}

// ---- cp.async: global to shared memory without passing through registers

// 16 bytes; with valid = false `from` is not read and the target is filled with zeros.  The data may be read
// after cp_async_wait by the thread that copied, after a barrier by others.
__device__ __forceinline__ void cp_async16(SharedAddress to, const void* from, bool valid = true,
                                           Site site = Site::here()) {
  const uint32_t bytes = valid ? 16 : 0;
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
#else
  emulator::cp_async16(to, from, bytes, site);
#endif
}
// Closes a group: everything this thread copied since the last commit.
__device__ __forceinline__ void cp_async_commit() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::cp_async_commit();
#endif
}
// Waits until at most `groups` of this thread's groups, the youngest, are in flight.
template <int groups>
__device__ __forceinline__ void cp_async_wait() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#else
  emulator::cp_async_wait(groups);
#endif
}

// ---- ldmatrix: 8x8 matrices of 16-bit elements, shared memory to registers
//
// Lane p gives the address (a multiple of 16) of row p % 8 of matrix p / 8.  Register m of lane l receives
// row g, columns 2t and 2t+1 of matrix m; with trans, rows 2t and 2t+1 of column g.

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], SharedAddress row, Site site = Site::here()) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
#else
  emulator::ldmatrix(4, false, row, r, site);
#endif
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAddress row,
                                                  Site site = Site::here()) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
#else
  emulator::ldmatrix(4, true, row, r, site);
#endif
}

// ---- mma.sync: d += a b, a 16x16 times a 16x8, bf16 with fp32 accumulation
//
// a[i], half h: row g + 8 (i % 2), column 2t + h + 8 (i / 2).   b[i], half h: row 2t + h + 8 i, column g.
// d[i]: row g + 8 (i / 2), column 2t + i % 2.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                             Site site = Site::here()) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const uint32_t b[2] = {b0, b1};
  emulator::mma_m16n8k16(d, a, b, site);
#endif
}

}  // namespace hearth::ptx
