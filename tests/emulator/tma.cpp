// TMA: boxes of a two-dimensional tensor between global and shared memory (cp.async.bulk.tensor).
#include <cstring>
#include <memory>

#include "emulator/block.h"
#include "emulator/mbarrier.h"
#include "emulator/tensor_map.h"

namespace hearth::emulator {
namespace {

TensorMap2d read_map(Block& block, const void* map, Site site) {
  if (reinterpret_cast<uintptr_t>(map) % 64)
    block.fail("the tensor map is not aligned to 64 bytes (pass it by value, as const __grid_constant__)",
               site);
  TensorMap2d m;
  std::memcpy(&m, map, sizeof m);
  if (m.magic != TensorMap2d::signature)
    block.fail("the tensor map was not made by cuTensorMapEncodeTiled", site);
  return m;
}

uint32_t box_bytes(const TensorMap2d& m) {
  return m.box_columns * m.box_rows * m.element_bytes;
}

void check_alignment(Block& block, const TensorMap2d& m, uint32_t address, Site site) {
  // The swizzle permutes by absolute address bits: a tile must start where its pattern starts.
  const uint32_t needed = m.swizzle == Swizzle::bytes128  ? 1024
                          : m.swizzle == Swizzle::bytes64 ? 512
                          : m.swizzle == Swizzle::bytes32 ? 256
                                                          : 128;
  if (address % needed)
    block.fail("the TMA tile in shared memory is not aligned to " + std::to_string(needed) + " bytes", site);
}

// Calls visit(shared address, global pointer or null when outside the tensor) for each element of the box.
template <class Visit>
void for_each_element(const TensorMap2d& m, uint32_t address, int column, int row, Visit visit) {
  for (uint32_t r = 0; r < m.box_rows; ++r)
    for (uint32_t c = 0; c < m.box_columns; ++c) {
      const uint32_t linear = address + (r * m.box_columns + c) * m.element_bytes;
      const int64_t y = int64_t{row} + r, x = int64_t{column} + c;
      const bool inside =
          x >= 0 && y >= 0 && x < static_cast<int64_t>(m.columns) && y < static_cast<int64_t>(m.rows);
      visit(swizzled(linear, m.swizzle),
            inside ? m.base + y * static_cast<int64_t>(m.pitch) + x * m.element_bytes : nullptr);
    }
}

}  // namespace

void tma_load_2d(uint32_t to, const void* map, uint32_t barrier, int column, int row, Site site) {
  Block& block = running_block();
  const TensorMap2d m = read_map(block, map, site);
  const uint32_t bytes = box_bytes(m);
  check_alignment(block, m, to, site);
  char* target = block.shared_range(to, bytes, "TMA load", site);
  for_each_element(m, to, column, row, [&](uint32_t, char* source) {
    if (source) check_global(block, source, m.element_bytes, Access::read, "TMA load", site);
  });
  if (block.checker) block.checker->begin_copy(block.current->id, to, bytes, Proxy::async, Place(site));
  begin_delivery(block, barrier, site);
  if (options().poison) std::memset(target, 0xff, bytes);
  block.counted.async_bytes += bytes;

  auto complete = [&block, m, to, barrier, column, row, bytes] {
    for_each_element(m, to, column, row, [&](uint32_t address, char* source) {
      if (source)
        std::memcpy(block.shared(address), source, m.element_bytes);
      else
        std::memset(block.shared(address), 0, m.element_bytes);  // outside the tensor: zeros, which count
    });
    if (block.checker) block.checker->end_copy(-1, to, bytes);
    deliver(block, barrier, bytes);
  };
  if (options().async == Async::eager)
    complete();
  else
    block.in_flight.push_back(complete);
}

void tma_store_2d(const void* map, uint32_t from, int column, int row, Site site) {
  Block& block = running_block();
  const TensorMap2d m = read_map(block, map, site);
  const uint32_t bytes = box_bytes(m);
  const int thread = block.current->id;
  check_alignment(block, m, from, site);
  block.shared_range(from, bytes, "TMA store", site);

  struct Element {
    char* to;
    char bits[8];
  };
  auto staged = std::make_shared<std::vector<Element>>();
  auto gather = [&block, m, from, column, row, staged] {
    staged->clear();
    for_each_element(m, from, column, row, [&](uint32_t address, char* to) {
      if (!to) return;  // outside the tensor: clipped
      Element element{to, {}};
      std::memcpy(element.bits, block.shared(address), m.element_bytes);
      staged->push_back(element);
    });
  };
  auto check_read = [&block, thread, from, bytes, site] {
    if (block.checker) block.checker->shared(thread, from, bytes, Access::read, Proxy::async, Place(site));
  };
  auto write = [&block, m, staged, site] {
    for (const Element& element : *staged) {
      check_global(block, element.to, m.element_bytes, Access::write, "TMA store", site);
      std::memcpy(element.to, element.bits, m.element_bytes);
    }
  };
  // Shared memory is read between now and the wait; the detector looks at both ends.
  check_read();
  const bool now = block.completes_now();
  if (now) gather();
  BulkStore store;
  store.read = [=] {
    check_read();
    if (!now) gather();
  };
  store.write = write;
  block.current->stores.push_back(std::move(store));
}

void bulk_commit() {
  Thread& self = *running_block().current;
  self.store_groups.push_back(std::move(self.stores));
  self.stores.clear();
}

void bulk_wait(int groups_in_flight, bool reads_only) {
  Thread& self = *running_block().current;
  const int finish = static_cast<int>(self.store_groups.size()) - groups_in_flight;
  for (int i = 0; i < finish; ++i)
    for (BulkStore& store : self.store_groups[i]) {
      if (!store.read_done) store.read();
      store.read_done = true;
      if (!reads_only) store.write();
    }
  if (!reads_only)
    for (int i = 0; i < finish; ++i)
      self.store_groups.pop_front();
}

namespace {

// cuTensorMapEncodeTiled's documented rules; CUDA_ERROR_INVALID_VALUE (1) when one is broken.
int encode(void* map, int data_type, uint32_t rank, void* address, const uint64_t* dims,
           const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, int interleave,
           int swizzle, int /*l2_promotion*/, int fill) {
  constexpr int invalid_value = 1;
  constexpr int type_float32 = 7, type_bf16 = 9;
  if (rank != 2 || interleave != 0 || fill != 0) return invalid_value;  // all that Hearth uses
  if (data_type != type_float32 && data_type != type_bf16) return invalid_value;
  if (swizzle < 0 || swizzle > 3) return invalid_value;
  const uint32_t element_bytes = data_type == type_bf16 ? 2 : 4;
  if (reinterpret_cast<uintptr_t>(map) % 64 || reinterpret_cast<uintptr_t>(address) % 16)
    return invalid_value;
  for (int i = 0; i < 2; ++i) {
    if (dims[i] == 0 || dims[i] > uint64_t{1} << 32 || box[i] == 0 || box[i] > 256 || element_strides[i] != 1)
      return invalid_value;
  }
  if (strides[0] % 16 || strides[0] >= uint64_t{1} << 40 || strides[0] < dims[0] * element_bytes)
    return invalid_value;
  const uint32_t inner = box[0] * element_bytes;
  if (inner % 16 || (swizzle != 0 && inner > 16u << swizzle)) return invalid_value;
  const TensorMap2d m{
      TensorMap2d::signature, static_cast<char*>(address),  dims[0], dims[1], strides[0], box[0], box[1],
      element_bytes,          static_cast<Swizzle>(swizzle)};
  std::memset(map, 0, 128);
  std::memcpy(map, &m, sizeof m);
  return 0;
}

}  // namespace

void* tensor_map_encoder() {
  return reinterpret_cast<void*>(&encode);
}

}  // namespace hearth::emulator
