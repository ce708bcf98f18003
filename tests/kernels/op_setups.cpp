// The kernels as implementations under test of tests/device/ops_*: on the emulator, in bf16.
#include "emulator/emulator.h"
#include "support/op_bench.h"

namespace hearth::testing {

namespace {

// A way to run kernels on a GPU of some size; no bit may depend on it.
struct Play {
  emulator::Order order;
  emulator::Async async;
  int multiprocessors;
};

// The cuda device; each use of its operations says how the emulator runs them.
class EmulatedDevice : public Device {
 public:
  explicit EmulatedDevice(const Play& play) : play_(play), before_(emulator::options()) { apply(); }
  ~EmulatedDevice() override {
    device_.reset();
    emulator::options() = before_;
  }

  std::string kind() const override { return device_->kind(); }
  std::string description() const override { return device_->description(); }
  Ops& ops() override {
    apply();
    return device_->ops();
  }
  bool host_memory() const override { return false; }
  std::optional<std::string> unsupported(Precision p) const override { return device_->unsupported(p); }
  void* allocate(size_t bytes) override { return device_->allocate(bytes); }
  void release(void* address, size_t bytes) noexcept override { device_->release(address, bytes); }
  void copy_in(const Tensor& to, const void* host) override { device_->copy_in(to, host); }
  void copy_out(void* host, const Tensor& from) override { device_->copy_out(host, from); }
  void synchronize() override { device_->synchronize(); }

 private:
  void apply() {
    emulator::Options& options = emulator::options();
    options.order = play_.order;
    options.async = play_.async;
    options.multiprocessors = play_.multiprocessors;
    options.check = emulator::sees_global_accesses();
  }

  const Play play_;
  const emulator::Options before_;
  std::unique_ptr<Device> device_ = make_cuda_device({});
};

MakeDevice emulated(const Play& play) {
  return [play] { return std::make_unique<EmulatedDevice>(play); };
}

}  // namespace

std::vector<Setup> setups() {
  using emulator::Async;
  using emulator::Order;
  Setup cuda{"cuda_bf16", DType::bf16, {emulated({Order::random, Async::lazy, 4})}, false, false, 8,
             true,        false};
  Setup schedules = cuda;
  schedules.name = "cuda_schedules_bf16";
  schedules.devices = {emulated({Order::forward, Async::eager, 4}),
                       emulated({Order::reverse, Async::lazy, 132}),
                       emulated({Order::random, Async::random, 1})};
  schedules.bitwise = true;
  return {cuda, schedules};
}

}  // namespace hearth::testing
