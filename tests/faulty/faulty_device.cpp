// The CUDA device of build/hearth-faulty: the CPU, with a fault in one rank where the tests ask for one.
//
// HEARTH_FAULT = "KIND RANK FIRST LAST": from step FIRST to step LAST of the process, rank RANK
//   weight  flips a bit of the first weight that it holds, before the step
//   nan     has a loss scale that is not a number, so that its own gradients are none, either
// Linked in front of the library, whose CUDA device only says that there is none; nothing in src/ knows of
// it.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "device/ops.h"
#include "support/decorator.h"

namespace hearth {

namespace {

struct Fault {
  std::string kind;
  int64_t rank = -1, first = 0, last = 0;
};

// Nothing is wrong with the other ranks.
Fault fault_of_this_rank() {
  Fault fault;
  const char* wanted = std::getenv("HEARTH_FAULT");
  const char* rank = std::getenv("RANK");
  if (wanted) std::istringstream(wanted) >> fault.kind >> fault.rank >> fault.first >> fault.last;
  const bool mine = rank && std::atoll(rank) == fault.rank;
  return mine ? fault : Fault{};
}

class FaultyDevice final : public testing::DeviceDecorator {
 public:
  explicit FaultyDevice(int threads) { inner_ = make_cpu_device(threads); }

  void* allocate(size_t bytes) override {
    void* memory = inner_->allocate(bytes);
    if (!weights_) weights_ = static_cast<std::byte*>(memory);  // the first thing that a run allocates
    return memory;
  }

  void copy_in(const Tensor& to, const void* host) override {
    if (to.dtype != DType::u8 || to.bytes() != sizeof(StepParams)) return inner_->copy_in(to, host);
    StepParams params = *static_cast<const StepParams*>(host);
    const bool begins = params.first_sample != first_sample_;  // it comes again before the update
    first_sample_ = params.first_sample;
    step_ += begins;
    if (step_ >= fault_.first && step_ <= fault_.last) spoil(params, begins);
    inner_->copy_in(to, &params);
  }

 private:
  void spoil(StepParams& params, bool step_begins) const {
    if (fault_.kind == "weight" && step_begins) weights_[2] ^= std::byte{0x20};  // a high bit of its mantissa
    if (fault_.kind == "nan") params.loss_scale = std::numeric_limits<double>::quiet_NaN();
  }

  const Fault fault_ = fault_of_this_rank();
  std::byte* weights_ = nullptr;
  int64_t first_sample_ = -1;
  int64_t step_ = 0;  // 1 in the first
};

}  // namespace

std::string cuda_build() {
  return "a faulty CPU";
}

std::optional<std::string> cuda_unavailable(int) {
  return std::nullopt;
}

std::unique_ptr<Device> make_cuda_device(const DeviceConfig& config) {
  return std::make_unique<FaultyDevice>(config.threads);
}

}  // namespace hearth
