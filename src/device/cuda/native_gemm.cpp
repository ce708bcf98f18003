// The native engine, and the choice between engines.
#include "base/error.h"
#include "device/cuda/gemm_engine.h"

namespace hearth::cuda {

namespace {

class NativeGemm final : public GemmEngine {
 public:
  std::string description() const override { return "native kernels"; }
  size_t workspace_bytes(const kernels::GemmArgs& args) const override {
    return kernels::gemm_workspace_bytes(args);
  }
  void run(const kernels::GemmArgs& args, void* workspace, cudaStream_t stream) override {
    kernels::gemm(args, workspace, stream);
  }
};

}  // namespace

std::unique_ptr<GemmEngine> make_native_gemm() {
  return std::make_unique<NativeGemm>();
}

std::unique_ptr<GemmEngine> make_gemm_engine(const std::string& name) {
  if (name == "native") return make_native_gemm();
  if (name == "cublaslt") return make_cublaslt_gemm(cublaslt::load());
  fail_usage("device.gemm = \"", name, "\", expected native or cublaslt");
}

}  // namespace hearth::cuda
