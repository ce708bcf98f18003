// The emulated instructions against the published tables: each table is written down here once more, as the
// PTX ISA prints it, and compared with what the emulator does to registers and shared memory.
#include "kernels/device_array.h"
#include "kernels/gemm.h"
#include "kernels/ptx_sm90.cuh"
#include "kernels/tensor_map.h"
#include "kernels/tiles.cuh"

namespace hearth::testing {
namespace {

// Lane l: g = l / 4 ("groupID"), t = l % 4 ("threadID_in_group").
class Layout : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, Layout, every_schedule(), schedule_name);

__device__ __forceinline__ int me() {
  return static_cast<int>(threadIdx.x);
}

// Four 8x8 matrices; element (row, column) of matrix m holds the number 64 m + 8 row + column.
__global__ void load_numbered_matrices(uint32_t* out, bool transposed, bool store_back) {
  const SharedAddress row =
      shared_memory() + static_cast<SharedAddress>(me()) * 16;  // row l % 8 of matrix l / 8
  for (int column = 0; column < 8; ++column)
    shared_store(row + column * 2, static_cast<uint16_t>(me() * 8 + column));
  __syncwarp();
  uint32_t r[4];
  if (transposed)
    ptx::ldmatrix_x4_trans(r, row);
  else
    ptx::ldmatrix_x4(r, row);
  for (int m = 0; m < 4; ++m)
    out[me() * 4 + m] = r[m];
  if (!store_back) return;
  __syncwarp();
  for (int m = 0; m < 4; ++m)
    r[m] += 0x10001;  // every element + 1
  ptx::stmatrix_x4(row, r);
  __syncwarp();
  for (int pair = 0; pair < 4; ++pair)
    out[128 + me() * 4 + pair] = shared_load<uint32_t>(row + pair * 4);
}

TEST_P(Layout, Ldmatrix) {
  for (bool transposed : {false, true}) {
    const DeviceArray<uint32_t> out(128);
    launch(load_numbered_matrices, 1, 32, 512, nullptr, out.data(), transposed, false);
    const auto r = out.to_host();
    for (int lane = 0; lane < 32; ++lane)
      for (int m = 0; m < 4; ++m)
        for (int half = 0; half < 2; ++half) {
          const int g = lane / 4, t = lane % 4;
          const int row = transposed ? 2 * t + half : g;
          const int column = transposed ? g : 2 * t + half;
          const uint32_t element = r[lane * 4 + m] >> (16 * half) & 0xffff;
          ASSERT_EQ(element, static_cast<uint32_t>(64 * m + 8 * row + column))
              << "lane " << lane << " register " << m;
        }
  }
}

TEST_P(Layout, StmatrixIsTheInverseOfLdmatrix) {
  const DeviceArray<uint32_t> out(256);
  launch(load_numbered_matrices, 1, 32, 512, nullptr, out.data(), false, true);
  const auto r = out.to_host();
  for (int row = 0; row < 32; ++row)
    for (int pair = 0; pair < 4; ++pair) {
      const uint32_t low = static_cast<uint32_t>(row * 8 + pair * 2);
      ASSERT_EQ(r[128 + row * 4 + pair], (low + 1) | (low + 2) << 16);
    }
}

// ---- mma.sync m16n8k16: one nonzero element of A and of B at a time says where each register's halves are.

// Lane `lane_a` has a one in half `half_a` of register `register_a`, and so on; everything else is zero.
struct OneHot {
  int lane_a, register_a, half_a, lane_b, register_b, half_b;
};
constexpr uint32_t bf16_one = 0x3f80;

__global__ void multiply_one_hot(float* out, const OneHot* cases) {
  const OneHot c = cases[blockIdx.x];
  uint32_t a[4] = {}, b[2] = {};
  if (me() == c.lane_a) a[c.register_a] = bf16_one << (16 * c.half_a);
  if (me() == c.lane_b) b[c.register_b] = bf16_one << (16 * c.half_b);
  float d[4] = {};
  ptx::mma_m16n8k16(d, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i)
    out[(static_cast<int>(blockIdx.x) * 32 + me()) * 4 + i] = d[i];
}

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
struct Position {
  int row, column;
};
Position position_a(int lane, int i, int half) {
  const int v = 2 * i + half;  // a0 .. a7
  const int row = (v == 0 || v == 1 || v == 4 || v == 5) ? lane / 4 : lane / 4 + 8;
  const int column = lane % 4 * 2 + (v & 1) + (v >= 4 ? 8 : 0);
  return {row, column};
}
Position position_b(int lane, int i, int half) {
  const int v = 2 * i + half;  // b0 .. b3
  return {lane % 4 * 2 + (v & 1) + (v >= 2 ? 8 : 0), lane / 4};
}
Position position_c(int lane, int i) {
  return {i < 2 ? lane / 4 : lane / 4 + 8, lane % 4 * 2 + (i & 1)};
}

TEST_P(Layout, MmaFragments) {
  // Every register half of A meets one of B with the same k, and one with another k.
  std::vector<OneHot> cases;
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      for (int half = 0; half < 2; ++half) {
        const int other = (lane * 7 + i * 3 + half) % 32;
        for (int j = 0; j < 2; ++j)
          cases.push_back({lane, i, half, (other / 4 * 4) | lane % 4, j, half});
        cases.push_back({lane, i, half, other, i / 2, 1 - half});
      }
  const DeviceArray<OneHot> device_cases(cases);
  const DeviceArray<float> out(static_cast<int64_t>(cases.size()) * 128);
  launch(multiply_one_hot, static_cast<unsigned>(cases.size()), 32, 0, nullptr, out.data(),
         device_cases.data());
  const auto d = out.to_host();
  for (size_t n = 0; n < cases.size(); ++n) {
    const OneHot& c = cases[n];
    const Position a = position_a(c.lane_a, c.register_a, c.half_a),
                   b = position_b(c.lane_b, c.register_b, c.half_b);
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const Position at = position_c(lane, i);
        const bool meets = a.column == b.row && at.row == a.row && at.column == b.column;
        ASSERT_EQ(d[n * 128 + lane * 4 + i], meets ? 1.0f : 0.0f)
            << "case " << n << " lane " << lane << " register " << i;
      }
  }
}

// ---- the 128-byte swizzle: TMA, SharedTile and the descriptor must mean the same bytes

// KERNELS: element (row, column) of a tile of 128-byte rows lies at byte a = 128 row + 2 column, where bits
// 4-6 of a are XORed with bits 7-9.
uint32_t swizzle128(uint32_t a) {
  return a ^ ((a >> 7 & 7) << 4);
}

using Square = SharedTile<64, 64>;

__global__ void load_by_tma(const __grid_constant__ TensorMap map, uint16_t* raw, uint16_t* by_tile,
                            int column, int row) {
  const Square tile{shared_memory()};
  const SharedAddress barrier = tile.base + Square::bytes;
  if (me() == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(barrier, Square::bytes);
    ptx::tma_load_2d(tile.base, map, barrier, column, row);
  }
  __syncthreads();
  ptx::mbarrier_wait(barrier, 0);
  for (int i = me(); i < 64 * 64; i += 128) {
    raw[i] = shared_load<uint16_t>(tile.base + i * 2);
    const SharedAddress chunk = tile.at(i / 64, i % 64 / 8);
    by_tile[i] = shared_load<uint16_t>(chunk + i % 8 * 2);
  }
}

TEST_P(Layout, TmaSwizzlesAndClips) {
  constexpr int rows = 50, columns = 72, stride = 80;
  std::vector<bf16> matrix(rows * stride);
  for (size_t i = 0; i < matrix.size(); ++i)
    matrix[i].bits = static_cast<uint16_t>(i + 1);
  const DeviceArray<bf16> device_matrix(matrix);
  const TensorMap map = kernels::make_tensor_map(device_matrix.data(), rows, columns, stride, 64, 64);
  for (const auto& [column, row] : {std::pair{0, 0}, {16, 3}, {-8, -5}, {40, 40}}) {
    const DeviceArray<uint16_t> raw(64 * 64), by_tile(64 * 64);
    launch(load_by_tma, 1, 128, Square::bytes + 8, nullptr, map, raw.data(), by_tile.data(), column, row);
    const auto bytes = raw.to_host(), elements = by_tile.to_host();
    for (int r = 0; r < 64; ++r)
      for (int c = 0; c < 64; ++c) {
        const int y = row + r, x = column + c;
        const bool inside = x >= 0 && x < columns && y >= 0 && y < rows;
        const int expected = inside ? y * stride + x + 1 : 0;
        const uint32_t at = swizzle128(static_cast<uint32_t>(r * 128 + c * 2)) / 2;
        ASSERT_EQ(bytes[at], expected) << r << ", " << c;
        ASSERT_EQ(elements[r * 64 + c], expected) << r << ", " << c;
      }
  }
}

__global__ void store_by_tma(const __grid_constant__ TensorMap map, int column, int row) {
  const Square tile{shared_memory()};
  for (int i = me(); i < 64 * 64; i += 128)
    shared_store(tile.at(i / 64, i % 64 / 8) + i % 8 * 2, static_cast<uint16_t>(i));
  ptx::fence_proxy_async();
  __syncthreads();
  if (me() == 0) {
    ptx::tma_store_2d(map, tile.base, column, row);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
}

TEST_P(Layout, TmaStoresClip) {
  constexpr int rows = 50, columns = 72, stride = 80, column = 40, row = 20;
  const DeviceArray<bf16> matrix(rows * stride);
  launch(store_by_tma, 1, 128, Square::bytes, nullptr,
         kernels::make_tensor_map(matrix.data(), rows, columns, stride, 64, 64), column, row);
  const auto values = matrix.to_host();
  for (int y = 0; y < rows; ++y)
    for (int x = 0; x < stride; ++x) {
      const bool written = y >= row && x >= column && x < columns;
      ASSERT_EQ(values[y * stride + x].bits, written ? (y - row) * 64 + x - column : 0xffff)
          << y << ", " << x;
    }
}

TEST(TensorMaps, BrokenRulesAreRefused) {
  const DeviceArray<bf16> matrix(64 * 72);
  const auto make = [&](const bf16* address, int64_t stride, int box_rows, int box_columns) {
    return kernels::make_tensor_map(address, 64, 64, stride, box_rows, box_columns);
  };
  EXPECT_NO_THROW(make(matrix.data(), 72, 64, 64));
  EXPECT_THROW(make(matrix.data() + 1, 72, 64, 64), Error);  // address not a multiple of 16
  EXPECT_THROW(make(matrix.data(), 66, 64, 64), Error);      // stride not a multiple of 16 bytes
  EXPECT_THROW(make(matrix.data(), 72, 257, 64), Error);     // box too high
  EXPECT_THROW(make(matrix.data(), 136, 64, 128), Error);    // box wider than the swizzle
}

// ---- wgmma: all operand orders against whole-number products; the accumulator table of the PTX ISA

template <int n, bool a_mn_major, bool b_mn_major>
__global__ void multiply_tiles(const __grid_constant__ TensorMap map_a,
                               const __grid_constant__ TensorMap map_b, float* out) {
  constexpr int k = 64;
  constexpr uint32_t bytes_a = 64 * k * 2, bytes_b = n * k * 2;
  const SharedAddress a = shared_memory(), b = a + bytes_a, barrier = b + bytes_b;
  if (me() == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(barrier, bytes_a + bytes_b);
    ptx::tma_load_2d(a, map_a, barrier, 0, 0);
    // K-major: one box of n rows; MN-major: panels of 64 columns, each k rows.
    for (int panel = 0; panel < (b_mn_major ? n / 64 : 1); ++panel)
      ptx::tma_load_2d(b + panel * k * 128, map_b, barrier, b_mn_major ? panel * 64 : 0, 0);
  }
  __syncthreads();
  ptx::mbarrier_wait(barrier, 0);
  float d[n / 2];
  const int lane = lane_index();
  ptx::wgmma_fence();
  for (int step = 0; step < k / 16; ++step) {
    const uint64_t descriptor_a = ptx::matrix_descriptor(a + step * (a_mn_major ? 2048 : 32), k * 128);
    const uint64_t descriptor_b = ptx::matrix_descriptor(b + step * (b_mn_major ? 2048 : 32), k * 128);
    if constexpr (n == 64)
      ptx::wgmma_m64n64k16<a_mn_major, b_mn_major>(d, descriptor_a, descriptor_b, step > 0);
    else
      ptx::wgmma_m64n256k16<a_mn_major, b_mn_major>(d, descriptor_a, descriptor_b, step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  // PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16", register D.
  for (int i = 0; i < n / 2; ++i) {
    const int row = 16 * warp_index() + lane / 4 + 8 * (i / 2 % 2);
    const int column = 8 * (i / 4) + lane % 4 * 2 + i % 2;
    out[row * n + column] = d[i];
  }
}

std::vector<bf16> transposed(const std::vector<bf16>& x, int rows, int columns) {
  std::vector<bf16> out(x.size());
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c)
      out[c * rows + r] = x[r * columns + c];
  return out;
}

template <int n, bool a_mn_major, bool b_mn_major>
void test_wgmma() {
  constexpr int m = 64, k = 64;
  const auto a = random_integers<bf16>(m * k, 15, 12), b = random_integers<bf16>(n * k, 15, 13);
  const DeviceArray<bf16> stored_a(a_mn_major ? transposed(a, m, k) : a);
  const DeviceArray<bf16> stored_b(b_mn_major ? transposed(b, n, k) : b);
  const DeviceArray<float> out(m * n);
  const TensorMap map_a = kernels::make_tensor_map(stored_a.data(), 64, 64, 64, 64, 64);
  const TensorMap map_b = b_mn_major ? kernels::make_tensor_map(stored_b.data(), k, n, n, k, 64)
                                     : kernels::make_tensor_map(stored_b.data(), n, k, k, n, 64);
  launch(multiply_tiles<n, a_mn_major, b_mn_major>, 1, 128, (m + n) * k * 2 + 8, nullptr, map_a, map_b,
         out.data());
  const auto d = out.to_host();
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float exact = 0;
      for (int l = 0; l < k; ++l)
        exact += static_cast<float>(a[i * k + l]) * static_cast<float>(b[j * k + l]);
      ASSERT_EQ(d[i * n + j], exact) << i << ", " << j;
    }
}

TEST_P(Layout, WgmmaInAllOrders) {
  test_wgmma<64, false, false>();
  test_wgmma<64, true, false>();
  test_wgmma<64, false, true>();
  test_wgmma<64, true, true>();
  test_wgmma<256, true, false>();
  test_wgmma<256, false, true>();
  test_wgmma<256, true, true>();
  test_wgmma<256, false, false>();
}
TEST(Tiles, LdmatrixMeetsNoBankConflicts) {
  using kernels::GemmTile, kernels::Product;
  const DeviceArray<bf16> a(random_integers<bf16>(128 * 128, 3, 1)),
      b(random_integers<bf16>(128 * 128, 3, 2)), c(128 * 128);
  const DeviceArray<float> sums(random_integers<float>(128 * 128, 3, 3));
  for (const GemmTile tile : {GemmTile::small, GemmTile::large})
    for (const Product product : {Product::forward, Product::input_gradient, Product::weight_gradient}) {
      kernels::GemmArgs args;
      args.product = product;
      args.tile = tile;
      args.m = args.n = 128, args.k = 64;
      args.a = a.data(), args.b = b.data();
      args.a_stride = args.b_stride = args.c_stride = 128;
      if (product == Product::weight_gradient)
        args.accumulator = sums.data();
      else
        args.c = c.data();
      emulator::reset_statistics();
      kernels::gemm(args, nullptr, nullptr);
      c.to_host();
      EXPECT_GT(emulator::statistics().ldmatrix, 0u);
      EXPECT_EQ(emulator::statistics().ldmatrix_conflicts, 0u);
      EXPECT_EQ(emulator::statistics().mma, 128u / 16 * 128 / 8 * 64 / 16);
    }
}

// ---- shuffles

__global__ void shuffle_kinds(int* out) {
  out[me() * 5] = __shfl_xor_sync(full_warp, me(), 5);
  out[me() * 5 + 1] = __shfl_down_sync(full_warp, me(), 3);
  out[me() * 5 + 2] = __shfl_up_sync(full_warp, me(), 3);
  out[me() * 5 + 3] = __shfl_sync(full_warp, me(), 7);
  out[me() * 5 + 4] = static_cast<int>(__ballot_sync(full_warp, me() % 3 == 0));
}
TEST_P(Layout, Shuffles) {
  const DeviceArray<int> out(32 * 5);
  launch(shuffle_kinds, 1, 32, 0, nullptr, out.data());
  const auto r = out.to_host();
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(r[lane * 5], lane ^ 5);
    EXPECT_EQ(r[lane * 5 + 1], lane + 3 < 32 ? lane + 3 : lane);
    EXPECT_EQ(r[lane * 5 + 2], lane >= 3 ? lane - 3 : lane);
    EXPECT_EQ(r[lane * 5 + 3], 7);
    EXPECT_EQ(r[lane * 5 + 4], 0x49249249);
  }
}

__global__ void reduce(float* out) {
  const float sum = block_sum(static_cast<float>(me()), shared_memory());
  const float most = block_max(static_cast<float>((me() * 37) % 256), shared_memory());
  out[me() * 2] = sum;
  out[me() * 2 + 1] = most;
}
TEST_P(Layout, BlockReductions) {
  const DeviceArray<float> out(512);
  launch(reduce, 1, 256, block_reduce_bytes<float>(256), nullptr, out.data());
  for (const auto r = out.to_host(); int thread : {0, 31, 100, 255}) {
    EXPECT_EQ(r[thread * 2], 255 * 128);
    EXPECT_EQ(r[thread * 2 + 1], 255);
  }
}

}  // namespace
}  // namespace hearth::testing
