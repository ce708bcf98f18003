// The reference device: host memory and the reference operations.
#include <cstdlib>
#include <cstring>

#include "base/host_memory.h"
#include "base/text.h"
#include "device/device.h"
#include "device/reference/reference_ops.h"

namespace hearth {

namespace {

class ReferenceDevice : public Device {
 public:
  std::string kind() const override { return "reference"; }
  std::string description() const override { return "reference, plain loops in double precision"; }
  Ops& ops() override { return ops_; }
  bool host_memory() const override { return true; }
  std::optional<std::string> unsupported(Precision) const override { return std::nullopt; }

  void* allocate(size_t bytes) override {
    const size_t whole_pages = (bytes + alignment - 1) / alignment * alignment;
    void* address = whole_pages >= bytes ? std::aligned_alloc(alignment, whole_pages) : nullptr;
    if (!address)
      fail_device("the run needs ", human_bytes(bytes), " of memory in one piece and ",
                  human_bytes(*free_bytes()),
                  " are free; use a smaller model, train.micro_batch or model.context.");
    return address;
  }
  void release(void* address, size_t) noexcept override { std::free(address); }

  void copy_in(const Tensor& to, const void* host) override {
    check(to.contiguous(), "copy into a tensor with gaps");
    std::memcpy(to.data, host, to.bytes());
  }
  void copy_out(void* host, const Tensor& from) override {
    check(from.contiguous(), "copy out of a tensor with gaps");
    std::memcpy(host, from.data, from.bytes());
  }

  std::optional<uint64_t> free_bytes() const override { return available_memory(); }

 private:
  static constexpr size_t alignment = 2 << 20;

  reference::ReferenceOps ops_;
};

}  // namespace

std::unique_ptr<Device> make_reference_device() {
  return std::make_unique<ReferenceDevice>();
}

}  // namespace hearth
