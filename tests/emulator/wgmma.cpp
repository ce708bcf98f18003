// wgmma.mma_async m64nNk16, bf16 to fp32: four warps multiply tiles that lie in shared memory.
//
// Each warp owns 16 of the 64 rows, so a warp's part is computed when its lanes meet.  It takes effect at
// issue (eager) or at wait_group (lazy); the accumulators hold NaN between.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "emulator/block.h"
#include "emulator/tensor_map.h"

namespace hearth::emulator {
namespace {

constexpr uint32_t all_lanes = 0xffffffffu;

// The 64-bit matrix descriptor (PTX ISA, "Matrix Descriptor Format").
struct Descriptor {
  uint32_t start, leading_bytes, stride_bytes;
  Swizzle swizzle;
};

Descriptor decode(Block& block, uint64_t bits, Site site) {
  auto field = [&](int at) { return static_cast<uint32_t>(bits >> at & 0x3fff) << 4; };
  if (bits >> 49 & 7) block.fail("the emulator knows no base offset in a matrix descriptor", site);
  if ((bits >> 14 & 3) || (bits >> 30 & 3) || (bits >> 46 & 7) || (bits >> 52 & 0x3ff))
    block.fail("reserved bits of a matrix descriptor are set", site);
  constexpr Swizzle modes[] = {Swizzle::none, Swizzle::bytes128, Swizzle::bytes64, Swizzle::bytes32};
  return {field(0), field(16), field(32), modes[bits >> 62]};
}

// Address of element (mn, k) in the canonical layouts: rows of 8, cores of one swizzle width.
uint32_t element_address(const Descriptor& d, uint32_t mn, uint32_t k, bool mn_major) {
  const uint32_t width = d.swizzle == Swizzle::none ? 16 : 16u << static_cast<uint32_t>(d.swizzle);  // bytes
  uint32_t offset;
  if (!mn_major && d.swizzle == Swizzle::none)
    offset = mn / 8 * d.stride_bytes + k / 8 * d.leading_bytes + mn % 8 * 16 + k % 8 * 2;
  else if (!mn_major)
    offset = mn / 8 * d.stride_bytes + mn % 8 * width + k * 2;
  else if (d.swizzle == Swizzle::none)
    offset = mn / 8 * d.stride_bytes + k / 8 * d.leading_bytes + k % 8 * 16 + mn % 8 * 2;
  else
    offset =
        mn / (width / 2) * d.leading_bytes + k / 8 * d.stride_bytes + k % 8 * width + mn % (width / 2) * 2;
  return swizzled(d.start + offset, d.swizzle);
}

float load_bf16(Block& block, uint32_t address, Site site) {
  uint16_t bits;
  std::memcpy(&bits, block.shared_range(address, 2, "wgmma read", site), 2);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The detector's view: the warpgroup's tensor core reads this warp's rows of A and all of B.  `number` is its
// clock: whoever waits for operation `number` knows that these reads are over.
void note_reads(Block& block, const WgmmaOperation& op, int warp, int64_t number) {
  if (!block.checker) return;
  const int reader = block.checker->begin_tensor_core(warp, number);
  const uint32_t first_row = static_cast<uint32_t>(warp % warps_per_group) * 16;
  auto read = [&](const Descriptor& d, uint32_t mn, uint32_t k, bool mn_major) {
    block.checker->shared(reader, element_address(d, mn, k, mn_major), 2, Access::read, Proxy::async,
                          Place(op.site));
  };
  if (!op.a_in_registers) {
    const Descriptor a = decode(block, op.a_descriptor, op.site);
    for (uint32_t i = 0; i < 16; ++i)
      for (uint32_t k = 0; k < 16; ++k)
        read(a, first_row + i, k, op.a_mn_major);
  }
  const Descriptor b = decode(block, op.b_descriptor, op.site);
  for (uint32_t j = 0; j < static_cast<uint32_t>(op.columns); ++j)
    for (uint32_t k = 0; k < 16; ++k)
      read(b, j, k, op.b_mn_major);
}

void load_a(Block& block, const WgmmaOperation& op, int warp, float (&a)[16][16]) {
  if (op.a_in_registers) {
    for (int lane = 0; lane < lanes_per_warp; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i % 2), column = 2 * (lane % 4) + 8 * (i / 2);
        a[row][column] = std::bit_cast<float>(op.a[lane][i] << 16);
        a[row][column + 1] = std::bit_cast<float>(op.a[lane][i] & 0xffff0000u);
      }
    return;
  }
  const Descriptor d = decode(block, op.a_descriptor, op.site);
  const uint32_t first_row = static_cast<uint32_t>(warp % warps_per_group) * 16;
  for (uint32_t i = 0; i < 16; ++i)
    for (uint32_t k = 0; k < 16; ++k)
      a[i][k] = load_bf16(block, element_address(d, first_row + i, k, op.a_mn_major), op.site);
}

__attribute__((target_clones("avx2", "default"))) void multiply(const float (&a)[16][16],
                                                                const float (&b)[16][256],
                                                                float (&c)[16][256], int columns) {
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < columns; ++j)
        c[i][j] += a[i][k] * b[k][j];
}

// c[row][column] of accumulator register e of a lane.
int row_of(int lane, int e) {
  return lane / 4 + 8 * (e / 2 % 2);
}
int column_of(int lane, int e) {
  return e / 4 * 8 + 2 * (lane % 4) + e % 2;
}

void compute(Block& block, const WgmmaOperation& op, int warp, float* const (&accumulator)[lanes_per_warp]) {
  thread_local float a[16][16], b[16][256], c[16][256];
  load_a(block, op, warp, a);
  const Descriptor d = decode(block, op.b_descriptor, op.site);
  for (uint32_t j = 0; j < static_cast<uint32_t>(op.columns); ++j)
    for (uint32_t k = 0; k < 16; ++k)
      b[k][j] = load_bf16(block, element_address(d, j, k, op.b_mn_major), op.site);
  const int registers = op.columns / 2;
  for (int lane = 0; lane < lanes_per_warp; ++lane)
    for (int e = 0; e < registers; ++e) {
      const float before = op.inputs.empty() ? accumulator[lane][e] : op.inputs[lane * registers + e];
      c[row_of(lane, e)][column_of(lane, e)] = op.accumulate ? before : 0.0f;
    }
  multiply(a, b, c, op.columns);
  for (int lane = 0; lane < lanes_per_warp; ++lane)
    for (int e = 0; e < op.columns / 2; ++e)
      accumulator[lane][e] = c[row_of(lane, e)][column_of(lane, e)];
}

bool in_flight(const WgmmaQueue& queue, const float* accumulator) {
  const auto first = queue.operations.end() - (queue.issued - queue.waited);
  return std::any_of(first, queue.operations.end(),
                     [&](const WgmmaOperation& op) { return !op.done && op.accumulator[0] == accumulator; });
}

// Until the wait the registers hold NaN; what they held is kept aside,
// unless an earlier product will write it.
void hide_accumulators(const WgmmaQueue& queue, WgmmaOperation& op) {
  const int registers = op.columns / 2;
  const bool keep = !in_flight(queue, op.accumulator[0]);
  if (keep) op.inputs.resize(static_cast<size_t>(lanes_per_warp) * registers);
  for (int lane = 0; lane < lanes_per_warp; ++lane)
    for (int e = 0; e < registers; ++e) {
      if (keep) op.inputs[lane * registers + e] = op.accumulator[lane][e];
      if (options().poison) op.accumulator[lane][e] = std::numeric_limits<float>::quiet_NaN();
    }
}

struct WgmmaArrival : WarpOperation {
  const WgmmaOperands* operands;
  Site site;
};

void issue(WarpOperation* const* lanes, uint32_t) {
  Block& block = running_block();
  const int warp_number = block.current->warp;
  WgmmaQueue& queue = block.warps[warp_number].wgmma;
  const auto& first = *static_cast<WgmmaArrival*>(lanes[0]);
  const WgmmaOperands& o = *first.operands;
  if (!queue.fenced) block.fail("wgmma without a wgmma.fence before it", first.site);
  WgmmaOperation op{o.columns,      o.accumulate, o.a_mn_major, o.b_mn_major, o.a != nullptr, o.a_descriptor,
                    o.b_descriptor, {},           {},           {},           false,          first.site};
  for (int lane = 0; lane < lanes_per_warp; ++lane) {
    const WgmmaOperands& mine = *static_cast<WgmmaArrival*>(lanes[lane])->operands;
    if (mine.b_descriptor != o.b_descriptor || (!o.a && mine.a_descriptor != o.a_descriptor) ||
        mine.accumulate != o.accumulate)
      block.fail("the lanes of a warp give wgmma different descriptors", first.site);
    op.accumulator[lane] = mine.accumulator;
    if (o.a) std::memcpy(op.a[lane], mine.a, sizeof op.a[lane]);
  }
  note_reads(block, op, warp_number, queue.issued);
  ++block.counted.wgmma;
  const bool idle = queue.waited == queue.issued;
  op.done = options().async == Async::eager || (idle && block.completes_now());
  if (op.done)
    compute(block, op, warp_number, op.accumulator);
  else
    hide_accumulators(queue, op);
  if (idle) queue.operations.clear();
  queue.operations.push_back(std::move(op));
  ++queue.issued;
  for (int thread : std::exchange(queue.waiting, {}))
    block.wake(thread);
}

void commit(WarpOperation* const*, uint32_t) {
  Block& block = running_block();
  WgmmaQueue& queue = block.warps[block.current->warp].wgmma;
  queue.group_ends.push_back(queue.issued);
  queue.fenced = false;
}

struct WgmmaWait : WarpOperation {
  int groups;
  int64_t target;  // all operations before this number are to be complete
};

void choose_target(WarpOperation* const* lanes, uint32_t) {
  Block& block = running_block();
  WgmmaQueue& queue = block.warps[block.current->warp].wgmma;
  const int keep = static_cast<WgmmaWait*>(lanes[0])->groups;
  int64_t target = queue.waited;
  while (static_cast<int>(queue.group_ends.size()) > keep) {
    target = queue.group_ends.front();
    queue.group_ends.pop_front();
  }
  for (int lane = 0; lane < lanes_per_warp; ++lane)
    static_cast<WgmmaWait*>(lanes[lane])->target = target;
}

// Completes a warp's operations before number `target`.
void complete(Block& block, int warp, int64_t target) {
  WgmmaQueue& queue = block.warps[warp].wgmma;
  int64_t number = queue.issued - static_cast<int64_t>(queue.operations.size());
  for (WgmmaOperation& op : queue.operations) {
    if (number++ >= target) break;
    if (!op.done) compute(block, op, warp, op.accumulator);
    op.done = true;
  }
}

void require_warpgroup(const char* instruction, Site site) {
  Block& block = running_block();
  const size_t end = static_cast<size_t>(block.current->warp / warps_per_group + 1) * warps_per_group;
  if (end > block.warps.size() || block.warps[end - 1].lanes < lanes_per_warp)
    block.fail(std::string(instruction) + " outside of a complete warpgroup", site);
}

}  // namespace

void wgmma(const WgmmaOperands& operands, Site site) {
  require_warpgroup("wgmma", site);
  WgmmaArrival arrival{{issue}, &operands, site};
  warp_collective(all_lanes, arrival, site);
}

void wgmma_fence(Site site) {
  require_warpgroup("wgmma.fence", site);
  WarpOperation operation{[](WarpOperation* const*, uint32_t) {
    Block& block = running_block();
    block.warps[block.current->warp].wgmma.fenced = true;
  }};
  warp_collective(all_lanes, operation, site);
}

void wgmma_commit(Site site) {
  WarpOperation operation{commit};
  warp_collective(all_lanes, operation, site);
}

void wgmma_wait(int groups_in_flight, Site site) {
  WgmmaWait wait{{choose_target}, groups_in_flight, 0};
  warp_collective(all_lanes, wait, site);
  Block& block = running_block();
  const int own = block.current->warp;
  const int first = own / warps_per_group * warps_per_group;
  for (int warp = first; warp < first + warps_per_group; ++warp)
    while (block.warps[warp].wgmma.issued < wait.target) {
      block.warps[warp].wgmma.waiting.push_back(block.current->id);
      block.wait("a wgmma that another warp of its warpgroup has not issued", site);
    }
  for (int warp = first; warp < first + warps_per_group; ++warp)
    complete(block, warp, wait.target);
  WgmmaQueue& queue = block.warps[own].wgmma;
  queue.waited = std::max(queue.waited, wait.target);
  if (block.checker) block.checker->wait_for_tensor_core(block.current->id, wait.target);
}

void fence_proxy_async() {
  Block& block = running_block();
  if (block.checker) block.checker->proxy_fence(block.current->id);
}

}  // namespace hearth::emulator
