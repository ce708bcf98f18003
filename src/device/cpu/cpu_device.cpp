// The cpu device: host memory on huge pages, and the fast operations.
#include <malloc.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/host_memory.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "device/cpu/cpu_ops.h"
#include "device/device.h"

namespace hearth {

namespace {

constexpr size_t huge_page = 2 << 20;

// oneDNN allocates and frees scratch in every call.  Keeping freed memory in the heap spares the page faults,
// which on a virtual machine can cost more than the arithmetic.
void keep_freed_memory() {
  constexpr int one_gibibyte = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, one_gibibyte);
  mallopt(M_TRIM_THRESHOLD, one_gibibyte);
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads)
      : threads_(threads), ops_(threads, cpu::host_isa(), cpu::host_has_fast_bf16_instructions()) {
    keep_freed_memory();
  }

  std::string kind() const override { return "cpu"; }
  std::string description() const override {
    return text("cpu, ", threads_, threads_ == 1 ? " thread, " : " threads, ", cpu::name_of(cpu::host_isa()),
                cpu::host_has_bf16_instructions() ? " with bf16" : "");
  }
  Ops& ops() override { return ops_; }
  bool host_memory() const override { return true; }
  std::optional<std::string> unsupported(Precision precision) const override {
    if (precision != Precision::fp64) return std::nullopt;
    return "the cpu device computes in fp32 and bf16; for fp64 use device.kind = \"reference\"";
  }

  void* allocate(size_t bytes) override {
    const size_t whole_pages = (bytes + huge_page - 1) / huge_page * huge_page;
    void* address = whole_pages >= bytes ? std::aligned_alloc(huge_page, whole_pages) : nullptr;
    if (!address)
      fail_device("the run needs ", human_bytes(bytes), " of memory in one piece and ",
                  human_bytes(*free_bytes()),
                  " are free; use a smaller model, train.micro_batch or model.context.");
    madvise(address, whole_pages, MADV_HUGEPAGE);  // advice only: without it everything works, slower
    return address;
  }
  void release(void* address, size_t) noexcept override { std::free(address); }

  void copy_in(const Tensor& to, const void* host) override {
    check(to.contiguous(), "copy into a tensor with gaps");
    std::memcpy(to.data, host, static_cast<size_t>(to.bytes()));
  }
  void copy_out(void* host, const Tensor& from) override {
    check(from.contiguous(), "copy out of a tensor with gaps");
    std::memcpy(host, from.data, static_cast<size_t>(from.bytes()));
  }

  std::optional<uint64_t> free_bytes() const override { return available_memory(); }

 private:
  int threads_;
  cpu::CpuOps ops_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads > 0 ? threads : available_cores());
}

namespace cpu {

CpuOps::CpuOps(int threads, Isa isa, bool native_bf16)
    : pool_(threads), isa_(isa), gemm_(pool_, isa, native_bf16) {}

float* thread_scratch(int64_t floats) {
  struct Scratch {
    float* data = nullptr;
    int64_t size = 0;
    ~Scratch() { std::free(data); }
  };
  thread_local Scratch scratch;
  if (scratch.size < floats) {
    const size_t bytes =
        (static_cast<size_t>(floats) * sizeof(float) + huge_page - 1) / huge_page * huge_page;
    std::free(scratch.data);
    scratch.size = 0;
    scratch.data = static_cast<float*>(std::aligned_alloc(huge_page, bytes));
    if (!scratch.data) fail_device("no memory for ", human_bytes(bytes), " of scratch");
    madvise(scratch.data, bytes, MADV_HUGEPAGE);
    scratch.size = static_cast<int64_t>(bytes / sizeof(float));
  }
  return scratch.data;
}

}  // namespace cpu

}  // namespace hearth
