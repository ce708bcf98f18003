// NCCL's communicators: one of all ranks, and a split of it for each axis.
#include <algorithm>

#include "base/error.h"
#include "comm/nccl.h"
#include "comm/nccl/nccl_communicator.h"

namespace hearth {
namespace {

class NcclFabric final : public Fabric {
 public:
  NcclFabric(ControlPlane& control, cuda::CudaDevice& device, const nccl::Api& api)
      : control_(control), device_(device), session_(control, device, api), all_(session_.connect_all()) {}
  ~NcclFabric() override { session_.release(all_); }

  std::unique_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks) override {
    if (ranks.size() == 1) return std::make_unique<SelfCommunicator>();  // so it is on all ranks
    const auto place = std::find(ranks.begin(), ranks.end(), control_.rank());
    check(place != ranks.end(), "rank ", control_.rank(), " is not in the group that it connects");
    const int rank = static_cast<int>(place - ranks.begin());
    const int color = *std::min_element(ranks.begin(), ranks.end());
    const nccl::Comm comm = session_.split(all_, color, rank, name);
    auto group = std::make_unique<NcclCommunicator>(session_, device_, comm, NcclGroup{name, ranks}, rank);
    group->barrier();  // the links are made at first use: what cannot work shows now
    return group;
  }

 private:
  ControlPlane& control_;
  cuda::CudaDevice& device_;
  NcclSession session_;
  const nccl::Comm all_;
};

}  // namespace

NcclStatus nccl_status() {
  nccl::Api api{};
  if (const auto why = nccl::open(api)) return {"", *why};
  return {nccl::version_text(api.version), ""};
}

std::unique_ptr<Fabric> make_nccl_fabric(ControlPlane& control, Device& device) {
  auto* cuda_device = dynamic_cast<cuda::CudaDevice*>(&device);
  check(cuda_device != nullptr, "NCCL on device ", device.kind());
  nccl::Api api{};
  if (const auto why = nccl::open(api))
    fail_device("NCCL cannot be used: ", *why, "; use parallel.transport = \"gloo\"");
  return std::make_unique<NcclFabric>(control, *cuda_device, api);
}

}  // namespace hearth
