// Planted bugs with cp.async and ldmatrix.
#include "emulator/planted_bugs.h"
#include "kernels/device_array.h"
#include "kernels/tiles.cuh"

namespace hearth::testing {
namespace {

constexpr int threads = 128;

__device__ __forceinline__ int me() {
  return static_cast<int>(threadIdx.x);
}

enum class CopyBug {
  none,
  no_barrier,
  wait_off_by_one,
  no_last_barrier,
  no_wait_at_end,
  misaligned,
  out_of_bounds
};

// out[i] = in[i], through a ring of 2 stages of `threads` floats,
// filled by the first warp 16 bytes at a time.
__global__ void copy_through_ring(const float* in, float* out, int tiles, CopyBug bug) {
  auto stage = [&](int tile) { return shared_memory() + static_cast<SharedAddress>(tile % 2) * threads * 4; };
  auto load = [&](int tile) {
    if (warp_index() != 0) return;
    const int shift = bug == CopyBug::misaligned ? 1 : bug == CopyBug::out_of_bounds ? 4 : 0;
    ptx::cp_async16(stage(tile) + me() * 16, in + tile * threads + me() * 4 + shift);
  };
  load(0);
  ptx::cp_async_commit();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load(tile + 1);
    ptx::cp_async_commit();
    if (bug == CopyBug::wait_off_by_one)
      ptx::cp_async_wait<2>();
    else
      ptx::cp_async_wait<1>();
    if (bug != CopyBug::no_barrier) __syncthreads();
    out[tile * threads + me()] = shared_load<float>(stage(tile) + (threads - 1 - me()) * 4);
    if (bug != CopyBug::no_last_barrier) __syncthreads();
  }
  if (bug == CopyBug::no_wait_at_end) {
    load(0);
    ptx::cp_async_commit();
  }
}

template <CopyBug planted>
bool run_copy(bool bug) {
  constexpr int tiles = 5;
  std::vector<float> in(tiles * threads);
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = static_cast<float>(i);
  const ExactArray<float> source(static_cast<int64_t>(in.size()));
  cudaMemcpy(source.data(), in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice);
  const DeviceArray<float> out(tiles * threads);
  launch(copy_through_ring, 1, threads, 2 * threads * sizeof(float), nullptr,
         static_cast<const float*>(source.data()), out.data(), tiles, bug ? planted : CopyBug::none);
  const auto values = out.to_host();
  for (int i = 0; i < tiles * threads; ++i)
    if (values[i] != in[i / threads * threads + threads - 1 - i % threads]) return false;
  return true;
}

enum class TileBug { none, fragment_at_wrong_chunk, row_out_of_bounds, row_misaligned };

// One warp multiplies a 16x16 by the identity, through SharedTile and ldmatrix.
__global__ void multiply_by_identity(const bf16* in, float* out, TileBug bug) {
  using Tile = SharedTile<16, 64>;
  const Tile a{shared_memory()}, b{shared_memory() + Tile::bytes};
  copy_tile_async<32>(a, in, 16, 16, 16, me());
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  for (int i = me(); i < 16 * 8; i += 32)
    shared_store(b.at(i / 8, i % 8), uint4{0, 0, 0, 0});
  __syncthreads();
  if (me() < 16) {
    const SharedAddress diagonal = b.at(me(), me() / 8) + static_cast<SharedAddress>(me() % 8) * 2;
    shared_store(diagonal, static_cast<uint16_t>(0x3f80));
  }
  __syncthreads();
  uint32_t fragment_a[4], fragment_b[4];
  if (bug == TileBug::row_out_of_bounds)
    load_a<true>(fragment_a, Tile{shared_memory() + Tile::bytes}, 8, 0);
  else if (bug == TileBug::row_misaligned)
    load_a<true>(fragment_a, Tile{shared_memory() + 8}, 0, 0);
  else
    load_a<true>(fragment_a, a, 0, bug == TileBug::fragment_at_wrong_chunk ? 16 : 0);
  load_b<true>(fragment_b, b, 0, 0);
  float acc[2][4] = {};
  for (int j = 0; j < 2; ++j) {
    ptx::mma_m16n8k16(acc[j], fragment_a, fragment_b[2 * j], fragment_b[2 * j + 1]);
    for (int i = 0; i < 4; ++i)
      out[accumulator_row(i) * 16 + 8 * j + accumulator_column(i)] = acc[j][i];
  }
}

template <TileBug planted>
bool run_tile(bool bug) {
  const auto in = random_integers<bf16>(16 * 16, 15, 7);
  const DeviceArray<bf16> device_in(in);
  const DeviceArray<float> out(16 * 16);
  launch(multiply_by_identity, 1, 32, 2 * SharedTile<16, 64>::bytes, nullptr, device_in.data(), out.data(),
         bug ? planted : TileBug::none);
  const auto values = out.to_host();
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != static_cast<float>(in[i])) return false;
  return true;
}

}  // namespace

std::vector<PlantedBug> copying_bugs() {
  return {
      {"CopyWithoutBarrier", Catch::check, run_copy<CopyBug::no_barrier>},
      {"CopyWaitOffByOne", Catch::check, run_copy<CopyBug::wait_off_by_one>},
      {"CopyRingReusedTooEarly", Catch::check, run_copy<CopyBug::no_last_barrier>},
      {"CopyInFlightAtTheEnd", Catch::plain, run_copy<CopyBug::no_wait_at_end>},
      {"CopyMisaligned", Catch::plain, run_copy<CopyBug::misaligned>},
      {"CopyOutOfBounds", Catch::plain, run_copy<CopyBug::out_of_bounds>},
      {"FragmentAtWrongChunk", Catch::plain, run_tile<TileBug::fragment_at_wrong_chunk>},
      {"LdmatrixOutOfBounds", Catch::plain, run_tile<TileBug::row_out_of_bounds>},
      {"LdmatrixMisaligned", Catch::plain, run_tile<TileBug::row_misaligned>},
  };
}

}  // namespace hearth::testing
