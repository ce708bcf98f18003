// Planted bugs with threads, barriers, shared and global memory.
#include "emulator/planted_bugs.h"
#include "kernels/device_array.h"
#include "kernels/ptx.cuh"

namespace hearth::testing {
namespace {

constexpr int threads = 128;

// Each kernel writes one float per thread; thread t's should be expected(t).
template <class Kernel, class Expected, class... Arguments>
bool run_kernel(Kernel kernel, int blocks, size_t shared_bytes, Expected expected, Arguments... arguments) {
  const DeviceArray<float> out(threads);
  launch(kernel, static_cast<unsigned>(blocks), threads, shared_bytes, nullptr, out.data(), arguments...);
  const auto values = out.to_host();
  for (int t = 0; t < threads; ++t)
    if (values[t] != static_cast<float>(expected(t))) return false;
  return true;
}

__device__ __forceinline__ SharedAddress slot(int i) {
  return shared_memory() + static_cast<SharedAddress>(i) * 4;
}
__device__ __forceinline__ int me() {
  return static_cast<int>(threadIdx.x);
}
constexpr size_t one_float_each = threads * sizeof(float);
int reversed(int t) {
  return threads - 1 - t;
}

// ---- barriers

__global__ void missing_barrier(float* out, bool bug) {
  shared_store(slot(me()), static_cast<float>(me()));
  if (!bug) __syncthreads();
  out[me()] = shared_load<float>(slot(threads - 1 - me()));
}

__global__ void missing_last_barrier(float* out, bool bug) {
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    shared_store(slot(me()), static_cast<float>(me() + i));
    __syncthreads();
    sum += shared_load<float>(slot((me() + 1) % threads));
    if (!bug) __syncthreads();
  }
  out[me()] = sum;
}

__global__ void missing_syncwarp(float* out, bool bug) {
  shared_store(slot(me()), static_cast<float>(me()));
  if (!bug) __syncwarp();
  out[me()] = shared_load<float>(slot(me() ^ 1));
}

__global__ void barrier_in_both_branches(float* out, bool bug) {
  shared_store(slot(me()), static_cast<float>(me()));
  if (bug && me() < 50)
    __syncthreads();
  else
    __syncthreads();
  out[me()] = shared_load<float>(slot(threads - 1 - me()));
}

__global__ void early_return(float* out, bool bug) {
  shared_store(slot(me()), static_cast<float>(me()));
  if (bug && me() >= 100) {
    out[me()] = static_cast<float>(threads - 1 - me());
    return;
  }
  __syncthreads();
  out[me()] = shared_load<float>(slot(threads - 1 - me()));
}

__global__ void half_skips_a_barrier(float* out, bool bug) {
  shared_store(slot(me()), static_cast<float>(me()));
  if (!bug || me() < 64) __syncthreads();
  __syncthreads();
  out[me()] = shared_load<float>(slot(threads - 1 - me()));
  __syncthreads();
}

// Warps 0 and 1 hand a value to warps 2 and 3 through barrier 1.
__global__ void named_barrier(float* out, int arriving_threads) {
  if (warp_index() < 2) {
    shared_store(slot(me()), static_cast<float>(me()));
    ptx::bar_arrive(1, arriving_threads);
    out[me()] = 0;
  } else {
    ptx::bar_sync(1, threads);
    out[me()] = shared_load<float>(slot(me() - 64));
  }
}
int handed_over(int t) {
  return t < 64 ? 0 : t - 64;
}
__global__ void named_barrier_too_small(float* out, bool bug) {
  const int count = bug ? 64 : threads;  // 64: the two waiting warps meet each other only
  if (warp_index() < 2) {
    shared_store(slot(me()), static_cast<float>(me()));
    if (!bug) ptx::bar_arrive(2, count);
    out[me()] = 0;
  } else {
    ptx::bar_sync(2, count);
    out[me()] = shared_load<float>(slot(me() - 64));
  }
}

// block_sum without the barrier that protects its scratch memory from the previous call.
__global__ void reduction_without_leading_barrier(float* out, bool bug) {
  float sum = 0;
  for (int round = 0; round < 3; ++round) {
    const float mine = warp_sum(static_cast<float>(round + 1));
    if (!bug) __syncthreads();
    if (lane_index() == 0) shared_store(slot(warp_index()), mine);
    __syncthreads();
    for (int warp = 0; warp < threads / warp_size; ++warp)
      sum += shared_load<float>(slot(warp));
  }
  out[me()] = sum;
}

// ---- warps

__global__ void shuffle_in_a_branch(float* out, bool bug) {
  float value = static_cast<float>(me());
  if (bug) {
    if (lane_index() < 16) value = __shfl_xor_sync(full_warp, value, 1);
  } else {
    value = __shfl_xor_sync(full_warp, value, 1);
  }
  out[me()] = value;
}

__global__ void shuffle_outside_its_mask(float* out, bool bug) {
  float value = static_cast<float>(me());
  const uint32_t mask = lane_index() < 16 ? 0x0000ffffu : 0xffff0000u;
  value = __shfl_xor_sync(mask, value, bug ? 16 : 1);
  out[me()] = value;
}

__global__ void different_collectives_meet(float* out, bool bug) {
  float value = static_cast<float>(me());
  if (bug && lane_index() < 16)
    value = __shfl_xor_sync(full_warp, value, 1);
  else
    value = __shfl_xor_sync(full_warp, value, 1);
  out[me()] = value;
}

// ---- shared memory

__global__ void uninitialised_shared(float* out, bool bug) {
  if (!bug || me() != 5) shared_store(slot(me()), 0.0f);
  __syncthreads();
  out[me()] = shared_load<float>(slot(me())) + static_cast<float>(me());
}

__global__ void shared_out_of_bounds(float* out, bool bug) {
  shared_store(slot(me() + (bug ? 1 : 0)), static_cast<float>(me()));
  __syncthreads();
  out[me()] = shared_load<float>(slot(me() + (bug ? 1 : 0)));
}

__global__ void misaligned_shared(float* out, bool bug) {
  shared_store(slot(me()), static_cast<float>(me()));
  __syncthreads();
  const SharedAddress vector = slot(me() / 4 * 4 + (bug && me() < 120 ? 1 : 0));
  const float4 v = shared_load<float4>(vector);
  out[me()] = v.x;
}

__global__ void address_never_set(float* out, bool bug) {
  const SharedAddress address = bug ? 0 : slot(me());
  shared_store(address, static_cast<float>(me()));
  out[me()] = shared_load<float>(address);
}

// ---- global memory

__global__ void global_read_out_of_bounds(float* out, const float* in, int n) {
  const float value = me() < n ? in[me()] : 0;
  out[me()] = static_cast<float>(me()) + 0 * value;
}

__global__ void global_write_out_of_bounds(float* out, float* scratch, int n) {
  if (me() < n) scratch[me()] = 1;
  out[me()] = static_cast<float>(me());
}

__global__ void vector_read_out_of_bounds(float* out, const float* in, int n) {
  float value = 0;
  if (me() * 4 < n) value = load16(in + me() * 4)[0];
  out[me()] = static_cast<float>(me()) + 0 * value;
}

__global__ void misaligned_vector(float* out, const float* in, bool bug) {
  const Vector<float> v = load16(in + (bug ? 1 : 0));
  out[me()] = static_cast<float>(me()) + 0 * v[0];
}

__global__ void misaligned_scalar(float* out, const char* in, bool bug) {
  const float value = *reinterpret_cast<const volatile float*>(in + (bug ? 2 : 0));
  out[me()] = static_cast<float>(me()) + 0 * value;
}

__global__ void host_pointer(float* out, const float* table) {
  out[me()] = static_cast<float>(me()) + 0 * table[me()];
}
__global__ void host_pointer_vector(float* out, const float* table) {
  out[me()] = static_cast<float>(me()) + 0 * load16(table)[0];
}

__global__ void two_blocks_write(float* out, bool bug) {
  if (bug || blockIdx.x == 0) out[me()] = static_cast<float>(me());
}

__global__ void add_from_two_blocks(float* out, float* total, bool bug) {
  if (me() == 0) total[bug ? 0 : blockIdx.x] += 1;
  if (blockIdx.x == 0) out[me()] = static_cast<float>(me());
}

// Two threads of a block exchange values through global memory.
__global__ void exchange_through_global(float* out, float* scratch, bool bug) {
  scratch[me()] = static_cast<float>(me());
  if (!bug) __syncthreads();
  out[me()] = scratch[threads - 1 - me()];
}

// ---- the runs

int identity(int t) {
  return t;
}
int neighbour(int t) {
  return t ^ 1;
}

template <auto kernel, auto expected, size_t shared_bytes = one_float_each, int blocks = 1>
bool simple(bool bug) {
  return run_kernel(kernel, blocks, shared_bytes, expected, bug);
}

// What these read is NaN and what they write is not looked at: only a report counts.
template <auto kernel, class T>
bool run_out_of_bounds(bool bug) {
  const DeviceArray<float> out(threads);
  const ExactArray<float> operand(100);
  launch(kernel, 1, threads, 0, nullptr, out.data(), static_cast<T*>(operand.data()), bug ? 101 : 100);
  out.to_host();
  return true;
}
bool run_use_after_free(bool bug) {
  const DeviceArray<float> out(threads);
  ExactArray<float> in(100);
  const float* address = in.data();
  if (bug) in.release();
  launch(vector_read_out_of_bounds, 1, threads, 0, nullptr, out.data(), address, 100);
  out.to_host();
  return true;
}
bool run_misaligned_vector(bool bug) {
  const DeviceArray<float> in(std::vector<float>(8, 1.0f));
  return run_kernel(misaligned_vector, 1, 0, identity, in.data(), bug);
}
bool run_misaligned_scalar(bool bug) {
  const DeviceArray<float> in(std::vector<float>(8, 0.0f));
  return run_kernel(misaligned_scalar, 1, 0, identity, reinterpret_cast<const char*>(in.data()), bug);
}
template <auto kernel>
bool run_host_pointer(bool bug) {
  const std::vector<float> table(threads + 4, 1.0f);
  const DeviceArray<float> device_table(table);
  const auto aligned =
      reinterpret_cast<const float*>((reinterpret_cast<uintptr_t>(table.data()) + 15) & ~uintptr_t{15});
  return run_kernel(kernel, 1, 0, identity, bug ? aligned : static_cast<const float*>(device_table.data()));
}
bool run_add_from_two_blocks(bool bug) {
  const DeviceArray<float> total(std::vector<float>(2, 0.0f));
  return run_kernel(add_from_two_blocks, 2, 0, identity, total.data(), bug);
}
bool run_exchange_through_global(bool bug) {
  const DeviceArray<float> scratch(threads);
  return run_kernel(exchange_through_global, 1, 0, reversed, scratch.data(), bug);
}
bool run_named_barrier_mismatch(bool bug) {
  return run_kernel(named_barrier, 1, one_float_each, handed_over, bug ? 64 : threads);
}
bool run_too_little_shared(bool bug) {
  return run_kernel(missing_barrier, 1, bug ? one_float_each / 2 : one_float_each, reversed, false);
}
int four_rounds(int t) {
  return 4 * ((t + 1) % threads) + 6;
}
int three_sums(int) {
  return threads * (1 + 2 + 3);
}
int vector_start(int t) {
  return t / 4 * 4;
}

}  // namespace

std::vector<PlantedBug> basic_bugs() {
  return {
      {"MissingBarrier", Catch::check, simple<missing_barrier, reversed>},
      {"MissingLastBarrierOfALoop", Catch::check, simple<missing_last_barrier, four_rounds>},
      {"MissingSyncwarp", Catch::check, simple<missing_syncwarp, neighbour>},
      {"BarrierInBothBranches", Catch::plain, simple<barrier_in_both_branches, reversed>},
      {"EarlyReturnBeforeABarrier", Catch::plain, simple<early_return, reversed>},
      {"HalfSkipsABarrier", Catch::plain, simple<half_skips_a_barrier, reversed>},
      {"NamedBarrierCountsDiffer", Catch::plain, run_named_barrier_mismatch},
      {"NamedBarrierTooSmall", Catch::check, simple<named_barrier_too_small, handed_over>},
      {"ReductionWithoutLeadingBarrier", Catch::check, simple<reduction_without_leading_barrier, three_sums>},
      {"ShuffleInABranch", Catch::plain, simple<shuffle_in_a_branch, neighbour>},
      {"ShuffleOutsideItsMask", Catch::plain, simple<shuffle_outside_its_mask, neighbour>},
      {"DifferentCollectivesMeet", Catch::plain, simple<different_collectives_meet, neighbour>},
      {"UninitialisedShared", Catch::check, simple<uninitialised_shared, identity>},
      {"SharedOutOfBounds", Catch::plain, simple<shared_out_of_bounds, identity>},
      {"TooLittleSharedAtLaunch", Catch::plain, run_too_little_shared},
      {"MisalignedShared", Catch::plain, simple<misaligned_shared, vector_start>},
      {"AddressNeverSet", Catch::plain, simple<address_never_set, identity>},
      {"GlobalReadOutOfBounds", Catch::instrumented,
       run_out_of_bounds<global_read_out_of_bounds, const float>},
      {"GlobalWriteOutOfBounds", Catch::instrumented, run_out_of_bounds<global_write_out_of_bounds, float>},
      {"VectorReadOutOfBounds", Catch::plain, run_out_of_bounds<vector_read_out_of_bounds, const float>},
      {"UseAfterFree", Catch::plain, run_use_after_free},
      {"MisalignedVector", Catch::plain, run_misaligned_vector},
      {"MisalignedScalar", Catch::instrumented, run_misaligned_scalar},
      {"HostPointer", Catch::instrumented, run_host_pointer<host_pointer>},
      {"HostPointerVector", Catch::plain, run_host_pointer<host_pointer_vector>},
      {"TwoBlocksWrite", Catch::instrumented, simple<two_blocks_write, identity, 0, 2>},
      {"AddFromTwoBlocks", Catch::instrumented, run_add_from_two_blocks},
      {"ExchangeThroughGlobal", Catch::instrumented, run_exchange_through_global},
  };
}

}  // namespace hearth::testing
