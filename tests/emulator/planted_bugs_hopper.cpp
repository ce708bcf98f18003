// Planted bugs with mbarrier, TMA and wgmma: a small warp-specialised product.
#include "emulator/planted_bugs.h"
#include "kernels/device_array.h"
#include "kernels/tensor_map.h"
#include "kernels/tiles.cuh"

namespace hearth::testing {
namespace {

enum class Bug {
  none,
  too_many_bytes_expected,
  too_few_bytes_expected,
  producer_parity,
  no_wait_for_full,
  no_wait_for_empty,
  released_before_wait,
  no_wgmma_wait,
  no_wgmma_fence,
  wrong_stride,
  init_not_published,
  too_many_arrivals,
  no_fence_before_store,
  staging_reused,
  store_not_waited_for,
  misaligned_tile,
  uncommitted_wgmma,
};

constexpr int tile = 64, stages = 2;
using Tile = SharedTile<tile, tile>;
constexpr int a_offset = 0, b_offset = stages * Tile::bytes, c_offset = 2 * stages * Tile::bytes;
constexpr int barriers_offset = c_offset + Tile::bytes, shared_bytes = barriers_offset + 2 * stages * 8;

__device__ __forceinline__ SharedAddress full(int64_t step) {
  return shared_memory() + barriers_offset + static_cast<SharedAddress>(step % stages) * 8;
}
__device__ __forceinline__ SharedAddress empty(int64_t step) {
  return full(step) + stages * 8;
}
__device__ __forceinline__ SharedAddress part(int offset, int64_t step) {
  return shared_memory() + static_cast<SharedAddress>(offset + step % stages * Tile::bytes);
}

__device__ __forceinline__ void produce(const TensorMap& a, const TensorMap& b, int steps, Bug bug) {
  for (int step = 0; step < steps; ++step) {
    const uint32_t parity = static_cast<uint32_t>(step / stages) & 1;
    if (bug != Bug::no_wait_for_empty)
      ptx::mbarrier_wait(empty(step), bug == Bug::producer_parity ? parity : parity ^ 1);
    const uint32_t bytes = bug == Bug::too_many_bytes_expected  ? 2 * Tile::bytes + 16
                           : bug == Bug::too_few_bytes_expected ? Tile::bytes
                                                                : 2 * Tile::bytes;
    ptx::mbarrier_arrive_expect_tx(full(step), bytes);
    const SharedAddress shift = bug == Bug::misaligned_tile ? 128 : 0;
    ptx::tma_load_2d(part(a_offset, step) + shift, a, full(step), step * tile,
                     static_cast<int>(blockIdx.x) * tile);
    ptx::tma_load_2d(part(b_offset, step), b, full(step), step * tile, static_cast<int>(blockIdx.y) * tile);
  }
}

__device__ __forceinline__ void consume(float (&acc)[32], int steps, Bug bug) {
  for (int step = 0; step < steps; ++step) {
    if (bug != Bug::no_wait_for_full)
      ptx::mbarrier_wait(full(step), static_cast<uint32_t>(step / stages) & 1);
    if (bug != Bug::no_wgmma_fence) ptx::wgmma_fence();
    for (int k = 0; k < tile / 16; ++k) {
      const SharedAddress next = static_cast<SharedAddress>(k) * 32;
      const uint64_t a =
          ptx::matrix_descriptor(part(a_offset, step) + next, 16, bug == Bug::wrong_stride ? 512 : 1024);
      const uint64_t b = ptx::matrix_descriptor(part(b_offset, step) + next, 16);
      ptx::wgmma_m64n64k16<false, false>(acc, a, b, step + k > 0);
    }
    if (bug == Bug::uncommitted_wgmma && step == steps - 1) return;
    ptx::wgmma_commit();
    if (bug == Bug::released_before_wait && threadIdx.x % 128 == 0) ptx::mbarrier_arrive(empty(step));
    if (!(bug == Bug::no_wgmma_wait && step == steps - 1)) ptx::wgmma_wait<0>();
    if (bug != Bug::released_before_wait && threadIdx.x % 128 == 0) ptx::mbarrier_arrive(empty(step));
    if (bug == Bug::too_many_arrivals && threadIdx.x % 128 == 1) ptx::mbarrier_arrive(empty(step));
  }
}

// Accumulators -> bf16 in shared memory -> TMA store.
__device__ __forceinline__ void store(const TensorMap& c, const float (&acc)[32], Bug bug) {
  const Tile staging{shared_memory() + c_offset};
  const int thread = static_cast<int>(threadIdx.x) % 128;
  for (int j = 0; j < 4; ++j) {
    const float* x = acc + 8 * j;
    const uint32_t pairs[4] = {ptx::cvt_bf16x2(x[0], x[1]), ptx::cvt_bf16x2(x[2], x[3]),
                               ptx::cvt_bf16x2(x[4], x[5]), ptx::cvt_bf16x2(x[6], x[7])};
    ptx::stmatrix_x4(staging.at(16 * (thread / 32) + thread % 16, 2 * j + thread % 32 / 16), pairs);
  }
  if (bug != Bug::no_fence_before_store) ptx::fence_proxy_async();
  ptx::bar_sync(1, 128);
  if (thread == 0) {
    ptx::tma_store_2d(c, staging.base, static_cast<int>(blockIdx.y) * tile,
                      static_cast<int>(blockIdx.x) * tile);
    ptx::bulk_commit();
    if (bug != Bug::staging_reused && bug != Bug::store_not_waited_for) ptx::bulk_wait_read<0>();
  }
  if (bug == Bug::staging_reused) {
    ptx::bar_sync(1, 128);
    shared_store(staging.at(thread / 8, thread % 8), uint4{0, 0, 0, 0});
    if (thread == 0) ptx::bulk_wait_read<0>();
  }
}

// C [m, n] = A [m, k] B [n, k]^T; threads 0-127 consume, thread 128 produces.
__global__ void __launch_bounds__(256, 1)
    product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
            const __grid_constant__ TensorMap c, int k, Bug bug) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), 1);
    }
    ptx::fence_mbarrier_init();
  }
  if (bug != Bug::init_not_published) __syncthreads();
  const int steps = static_cast<int>(ceil_div(k, tile));
  if (threadIdx.x >= 128) {
    ptx::setmaxnreg_decrease<40>();
    if (threadIdx.x == 128) produce(a, b, steps, bug);
  } else {
    ptx::setmaxnreg_increase<232>();
    float acc[32];
    consume(acc, steps, bug);
    store(c, acc, bug);
  }
}

template <Bug planted>
bool run_product(bool bug) {
  constexpr int m = 72, n = 64, k = 200;
  const auto a = random_integers<bf16>(m * k, 3, 8), b = random_integers<bf16>(n * k, 3, 9);
  const DeviceArray<bf16> device_a(a), device_b(b), device_c(m * n);
  launch(product, dim3(2, 1), 256, shared_bytes, nullptr,
         kernels::make_tensor_map(device_a.data(), m, k, k, tile, tile),
         kernels::make_tensor_map(device_b.data(), n, k, k, tile, tile),
         kernels::make_tensor_map(device_c.data(), m, n, n, tile, tile), k, bug ? planted : Bug::none);
  const auto c = device_c.to_host();
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float exact = 0;
      for (int l = 0; l < k; ++l)
        exact += static_cast<float>(a[i * k + l]) * static_cast<float>(b[j * k + l]);
      if (static_cast<float>(c[i * n + j]) != static_cast<float>(bf16(exact))) return false;
    }
  return true;
}

// Three warpgroups share 65536 registers.
__global__ void __launch_bounds__(384, 1) share_registers(float* out, bool bug) {
  if (threadIdx.x < 128 && !bug)
    ptx::setmaxnreg_decrease<40>();
  else
    ptx::setmaxnreg_increase<232>();
  if (threadIdx.x == 0) out[0] = 1;
}
bool run_registers(bool bug) {
  const DeviceArray<float> out(1);
  launch(share_registers, 1, 384, 0, nullptr, out.data(), bug);
  return out.to_host()[0] == 1;
}

// Shared memory written by threads, read by wgmma; and read by threads, overwritten by TMA.
__global__ void generic_then_wgmma(const bf16* in, float* out, bool bug) {
  const Tile a{shared_memory()}, b{shared_memory() + Tile::bytes};
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < tile * 8; i += 128) {
    shared_store(a.at(i / 8, i % 8), load16(in + i * 8));
    shared_store(b.at(i / 8, i % 8), load16(in + i * 8));
  }
  if (!bug) ptx::fence_proxy_async();
  __syncthreads();
  float acc[32];
  ptx::wgmma_fence();
  for (uint32_t k = 0; k < 4; ++k)
    ptx::wgmma_m64n64k16<false, false>(acc, ptx::matrix_descriptor(a.base + k * 32, 16),
                                       ptx::matrix_descriptor(b.base + k * 32, 16), k > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  out[thread] = acc[0];
}
bool run_generic_then_wgmma(bool bug) {
  const DeviceArray<bf16> in(random_integers<bf16>(tile * tile, 3, 10));
  const DeviceArray<float> out(128);
  launch(generic_then_wgmma, 1, 128, 2 * Tile::bytes, nullptr, in.data(), out.data(), bug);
  out.to_host();
  return true;
}

__global__ void read_then_tma(const __grid_constant__ TensorMap in, float* out, bool bug) {
  const Tile t{shared_memory()};
  const SharedAddress barrier = shared_memory() + Tile::bytes;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  float sum = 0;
  for (uint32_t round = 0; round < 2; ++round) {
    if (thread == 0) {
      ptx::mbarrier_arrive_expect_tx(barrier, Tile::bytes);
      ptx::tma_load_2d(t.base, in, barrier, 0, static_cast<int>(round) * tile);
    }
    ptx::mbarrier_wait(barrier, round);
    sum += low_half(shared_load<uint32_t>(t.at(thread % tile, 0)));
    if (!bug) ptx::fence_proxy_async();
    __syncthreads();
  }
  out[thread] = sum;
}
bool run_read_then_tma(bool bug) {
  const auto values = random_integers<bf16>(2 * tile * tile, 3, 11);
  const DeviceArray<bf16> in(values);
  const DeviceArray<float> out(128);
  launch(read_then_tma, 1, 128, Tile::bytes + 8, nullptr,
         kernels::make_tensor_map(in.data(), 2 * tile, tile, tile, tile, tile), out.data(), bug);
  const auto sums = out.to_host();
  for (int t = 0; t < 128; ++t)
    if (sums[t] !=
        static_cast<float>(values[t % tile * tile]) + static_cast<float>(values[(t % tile + tile) * tile]))
      return false;
  return true;
}

}  // namespace

std::vector<PlantedBug> hopper_bugs() {
  return {
      {"TooManyBytesExpected", Catch::plain, run_product<Bug::too_many_bytes_expected>},
      {"TooFewBytesExpected", Catch::plain, run_product<Bug::too_few_bytes_expected>},
      {"ProducerParity", Catch::plain, run_product<Bug::producer_parity>},
      {"NoWaitForFull", Catch::check, run_product<Bug::no_wait_for_full>},
      {"NoWaitForEmpty", Catch::plain, run_product<Bug::no_wait_for_empty>},
      {"ReleasedBeforeWgmmaWait", Catch::check, run_product<Bug::released_before_wait>},
      {"NoWgmmaWait", Catch::plain, run_product<Bug::no_wgmma_wait>},
      {"NoWgmmaFence", Catch::plain, run_product<Bug::no_wgmma_fence>},
      {"WrongDescriptorStride", Catch::plain, run_product<Bug::wrong_stride>},
      {"UncommittedWgmma", Catch::plain, run_product<Bug::uncommitted_wgmma>},
      {"MbarrierInitNotPublished", Catch::check, run_product<Bug::init_not_published>},
      {"TooManyArrivals", Catch::plain, run_product<Bug::too_many_arrivals>},
      {"TooManyRegisters", Catch::plain, run_registers},
      {"NoProxyFenceBeforeTmaStore", Catch::check, run_product<Bug::no_fence_before_store>},
      {"StagingReusedBeforeTmaReadIt", Catch::check, run_product<Bug::staging_reused>},
      {"TmaStoreNotWaitedFor", Catch::plain, run_product<Bug::store_not_waited_for>},
      {"MisalignedTmaTile", Catch::plain, run_product<Bug::misaligned_tile>},
      {"NoProxyFenceBeforeWgmma", Catch::check, run_generic_then_wgmma},
      {"NoProxyFenceBeforeTmaLoad", Catch::check, run_read_then_tma},
  };
}

}  // namespace hearth::testing
