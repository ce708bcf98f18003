// The emulator's part of conformance/conformance.h against plain formulas, under every schedule.
#include "kernels/conformance/conformance.h"

#include <bit>
#include <map>

#include "kernels/device_array.h"

namespace hearth::testing {
namespace {

using conformance::Record;
using conformance::TmaShape;
using conformance::wgmma_k;
using Words = std::vector<uint32_t>;

constexpr uint32_t untouched = 0xabababab;

// 16-bit element i of an array of words.
uint16_t half(const Words& words, int64_t i) {
  return static_cast<uint16_t>(words[static_cast<size_t>(i / 2)] >> (i % 2 * 16));
}
float number(const Words& words, int64_t i) {
  bf16 value;
  value.bits = half(words, i);
  return static_cast<float>(value);
}
uint32_t bits(float value) {
  return std::bit_cast<uint32_t>(value);
}

// ---- what must come out

// Row r of matrix m lies where conformance.cu's matrix_row says.
int matrix_element(int matrix, int row, int column) {
  return 64 * matrix + (5 * row + matrix) % 8 * 8 + column;
}
Words ldmatrix(const Words& in, bool trans) {
  Words out;
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m) {
      const int g = lane / 4, t = lane % 4;
      const int low = trans ? matrix_element(m, 2 * t, g) : matrix_element(m, g, 2 * t);
      const int high = trans ? matrix_element(m, 2 * t + 1, g) : matrix_element(m, g, 2 * t + 1);
      out.push_back(half(in, low) | static_cast<uint32_t>(half(in, high)) << 16);
    }
  return out;
}
Words stmatrix(const Words& in) {
  Words out(128);
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m)
      out[static_cast<size_t>(matrix_element(m, lane / 4, lane % 4 * 2) / 2)] =
          in[static_cast<size_t>(4 * lane + m)];
  return out;
}

Words mma(const Words& in) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4, first = 20 * lane;  // 10 words, 20 halves
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < 4; ++i)
        a[g + 8 * (i % 2)][2 * t + h + 8 * (i / 2)] = number(in, first + 2 * i + h);
      for (int i = 0; i < 2; ++i)
        b[2 * t + h + 8 * i][g] = number(in, first + 8 + 2 * i + h);
    }
    for (int i = 0; i < 4; ++i)
      d[g + 8 * (i / 2)][2 * t + i % 2] = std::bit_cast<float>(in[static_cast<size_t>(10 * lane + 6 + i)]);
  }
  Words out;
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      float sum = d[row][column];
      for (int k = 0; k < 16; ++k)
        sum += a[row][k] * b[k][column];
      out.push_back(bits(sum));
    }
  return out;
}

Words cp_async(const Words& in) {
  Words out(in.begin(), in.begin() + 256);
  for (size_t i = 0; i < out.size(); ++i)
    if (!(in[256 + i / 4] & 1)) out[i] = 0;
  return out;
}

// What warp 1 reads backwards, round after round.
Words handed_over(const Words& in) {
  Words out;
  for (size_t i = 0; i < 128; ++i)
    out.push_back(in[i / 32 * 32 + 31 - i % 32]);
  return out;
}

// Byte of element (row, column) of a box in shared memory: rows of 128 bytes, whose 16-byte pieces the
// swizzle permutes.
int box_byte(int row, int column, bool swizzled) {
  const int piece = column / 8;
  return 128 * row + 16 * (swizzled ? piece ^ row % 8 : piece) + column % 8 * 2;
}
bool inside(conformance::Corner c, int row, int column) {
  return c.row + row >= 0 && c.row + row < TmaShape::rows && c.column + column >= 0 &&
         c.column + column < TmaShape::columns;
}
void put(Words& words, int byte, uint16_t value) {
  uint32_t& word = words[static_cast<size_t>(byte / 4)];
  const int shift = byte % 4 * 8;
  word = (word & ~(0xffffu << shift)) | static_cast<uint32_t>(value) << shift;
}
Words tma_load(const Words& in, conformance::Corner c, bool swizzled) {
  Words out(TmaShape::box_rows * TmaShape::box_columns / 2);
  for (int r = 0; r < TmaShape::box_rows; ++r)
    for (int k = 0; k < TmaShape::box_columns; ++k)
      put(out, box_byte(r, k, swizzled),
          inside(c, r, k) ? half(in, (c.row + r) * TmaShape::stride + c.column + k) : uint16_t{0});
  return out;
}
Words tma_store(const Words& in, conformance::Corner c, bool swizzled) {
  Words out(TmaShape::rows * TmaShape::stride / 2, untouched);
  for (int r = 0; r < TmaShape::box_rows; ++r)
    for (int k = 0; k < TmaShape::box_columns; ++k)
      if (inside(c, r, k))
        put(out, 2 * ((c.row + r) * TmaShape::stride + c.column + k), half(in, box_byte(r, k, swizzled) / 2));
  return out;
}

// Element (mn, k) of a tile with the 128-byte swizzle, counted from the tile's start: rows along k, or panels
// of 64 rows along mn.
int tile_element(int mn, int k, bool mn_major) {
  return (mn_major ? mn / 64 * 64 * wgmma_k * 2 + box_byte(k, mn % 64, true) : box_byte(mn, k, true)) / 2;
}
struct Majors {
  bool a_mn, b_mn;
};
Words wgmma(const Words& in, int n, Majors majors) {
  constexpr int b_first = 64 * wgmma_k;
  std::vector<float> a(64 * wgmma_k), b(static_cast<size_t>(n * wgmma_k));
  for (int m = 0; m < 64; ++m)
    for (int k = 0; k < wgmma_k; ++k)
      a[static_cast<size_t>(m * wgmma_k + k)] = number(in, tile_element(m, k, majors.a_mn));
  for (int j = 0; j < n; ++j)
    for (int k = 0; k < wgmma_k; ++k)
      b[static_cast<size_t>(j * wgmma_k + k)] = number(in, b_first + tile_element(j, k, majors.b_mn));
  Words out;
  for (int thread = 0; thread < 128; ++thread)
    for (int i = 0; i < n / 2; ++i) {
      const int m = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
      const int j = i / 4 * 8 + thread % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < wgmma_k; ++k)
        sum += a[static_cast<size_t>(m * wgmma_k + k)] * b[static_cast<size_t>(j * wgmma_k + k)];
      out.push_back(bits(sum));
    }
  return out;
}

// ---- tests

class Conformance : public ScheduledTest {
 protected:
  Conformance() {
    for (Record& record : conformance::run(true))
      records_.emplace(record.name, std::move(record));
  }
  const Record& at(const std::string& name) const { return records_.at(name); }

 private:
  std::map<std::string, Record> records_;
};
INSTANTIATE_TEST_SUITE_P(, Conformance, every_schedule(), schedule_name);

TEST_P(Conformance, InstructionsOfSm80) {
  for (const bool trans : {false, true}) {
    const Record& r = at(trans ? "ldmatrix_x4_trans" : "ldmatrix_x4");
    EXPECT_EQ(r.output, ldmatrix(r.input, trans)) << r.name;
    EXPECT_NE(r.output, ldmatrix(r.input, !trans)) << r.name;
  }
  EXPECT_EQ(at("mma_m16n8k16").output, mma(at("mma_m16n8k16").input));
  EXPECT_EQ(at("cp_async16").output, cp_async(at("cp_async16").input));
  const Record& barriers = at("bar_sync and bar_arrive");
  EXPECT_EQ(barriers.output, handed_over(barriers.input));
  const Record& convert = at("cvt_bf16");
  for (size_t i = 0; i < convert.output.size(); i += 2) {
    const bf16 low(std::bit_cast<float>(convert.input[i])), high(std::bit_cast<float>(convert.input[i + 1]));
    ASSERT_EQ(convert.output[i], low.bits | static_cast<uint32_t>(high.bits) << 16);
    ASSERT_EQ(convert.output[i + 1], low.bits);
  }
  const Record& shuffles = at("shuffles");
  for (size_t lane = 0; lane < 32; ++lane) {
    for (size_t i = 0; i < 5; ++i)
      EXPECT_EQ(shuffles.output[7 * lane + i], shuffles.input[lane ^ size_t{1} << i]);
    EXPECT_EQ(shuffles.output[7 * lane + 5], shuffles.input[lane < 1 ? lane : lane - 1]);
    EXPECT_EQ(shuffles.output[7 * lane + 6], shuffles.input[lane < 8 ? lane : lane - 8]);
  }
}

TEST_P(Conformance, StoresAndBarriersOfSm90) {
  EXPECT_EQ(at("stmatrix_x4").output, stmatrix(at("stmatrix_x4").input));
  const Record& barriers = at("mbarrier");
  EXPECT_EQ(barriers.output, handed_over(barriers.input));
}

TEST_P(Conformance, TmaWithAndWithoutSwizzle) {
  for (const bool swizzled : {false, true})
    for (const conformance::Corner c : conformance::tma_corners()) {
      const std::string where = std::string(swizzled ? " 128-byte" : " no") + " swizzle at " +
                                std::to_string(c.row) + "," + std::to_string(c.column);
      const Record& load = at("tma_load_2d" + where);
      EXPECT_EQ(load.output, tma_load(load.input, c, swizzled)) << load.name;
      const Record& store = at("tma_store_2d" + where);
      EXPECT_EQ(store.output, tma_store(store.input, c, swizzled)) << store.name;
    }
}

// Also: no product comes out right when a major is taken for the other.
TEST_P(Conformance, WgmmaInAllMajors) {
  for (const int n : conformance::wgmma_widths())
    for (const bool a_mn : {false, true})
      for (const bool b_mn : {false, true}) {
        const Record& r = at("wgmma_m64n" + std::to_string(n) + "k16 A " + (a_mn ? "MN-major" : "K-major") +
                             ", B " + (b_mn ? "MN-major" : "K-major"));
        EXPECT_EQ(r.output, wgmma(r.input, n, {a_mn, b_mn})) << r.name;
        EXPECT_NE(r.output, wgmma(r.input, n, {a_mn, !b_mn})) << r.name;
        EXPECT_NE(r.output, wgmma(r.input, n, {!a_mn, b_mn})) << r.name;
      }
}

}  // namespace
}  // namespace hearth::testing
