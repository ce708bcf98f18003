// The implementations under test.  Where the cpu backend has code for several instruction sets, each that
// this machine has is tested, not only the best; and every case also runs with several thread counts.
#include "device/cpu/cpu_ops.h"
#include "support/op_bench.h"

namespace hearth::testing {

namespace {

// The memory of the reference device and given operations.
class DeviceWithOps : public Device {
 public:
  explicit DeviceWithOps(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {}

  std::string kind() const override { return "cpu"; }
  std::string description() const override { return "cpu variant"; }
  Ops& ops() override { return *ops_; }
  bool host_memory() const override { return true; }
  std::optional<std::string> unsupported(Precision) const override { return std::nullopt; }
  void* allocate(size_t bytes) override { return memory_->allocate(bytes); }
  void release(void* address, size_t bytes) noexcept override { memory_->release(address, bytes); }
  void copy_in(const Tensor& to, const void* host) override { memory_->copy_in(to, host); }
  void copy_out(void* host, const Tensor& from) override { memory_->copy_out(host, from); }

 private:
  std::unique_ptr<Device> memory_ = make_reference_device();
  std::unique_ptr<Ops> ops_;
};

MakeDevice cpu(int threads) {
  return [threads] { return make_cpu_device(threads); };
}

MakeDevice cpu_variant(cpu::Isa isa, bool native_bf16) {
  return [=] { return std::make_unique<DeviceWithOps>(std::make_unique<cpu::CpuOps>(2, isa, native_bf16)); };
}

}  // namespace

std::vector<Setup> setups() {
  std::vector<Setup> all;
  for (const DType compute : {DType::f32, DType::bf16}) {
    const std::string type = compute == DType::f32 ? "_f32" : "_bf16";
    const auto add = [&](const std::string& name, const MakeDevice& make) {
      all.push_back({name + type, compute, {make}, false, false});
    };
    // The reference in f32 and bf16 storage is held to itself in f64: a test of its rounding points.
    all.push_back({"reference" + type, compute, {make_reference_device}, false, true});
    add("cpu", cpu(2));
    all.push_back({"cpu_threads" + type, compute, {cpu(1), cpu(2), cpu(3), cpu(5)}, true, false});
    for (const cpu::Isa isa : {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512}) {
      if (isa < cpu::host_isa()) add(text("cpu_isa", static_cast<int>(isa)), cpu_variant(isa, false));
    }
    if (compute == DType::bf16 && cpu::host_has_bf16_instructions()) {
      const bool usual = cpu::host_has_fast_bf16_instructions();
      add(usual ? "cpu_without_bf16_instructions" : "cpu_with_bf16_instructions",
          cpu_variant(cpu::host_isa(), !usual));
    }
  }
  return all;
}

}  // namespace hearth::testing
