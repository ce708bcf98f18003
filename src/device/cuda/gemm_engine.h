// What computes the matrix products of linear layers on a GPU: `device.gemm = "native" | "cublaslt"`.
//
// Both engines take the same arguments and give the same results but for rounding: cuBLASLt, unless it
// refuses the epilogue, applies gelu to the fp32 pre-activation, the native engine to the bf16 one that is
// stored.  So its y differs from gelu(pre) by up to 1.13 |pre| / 512 before it is rounded itself.
#pragma once

#include <memory>
#include <string>

#include "device/cuda/api/cublaslt.h"
#include "kernels/gemm.h"

namespace hearth::cuda {

class GemmEngine {
 public:
  virtual ~GemmEngine() = default;

  // "native kernels", "cuBLASLt 13.0"
  virtual std::string description() const = 0;
  // The workspace, a multiple of 16, is read and written only by the call's own work on the stream.
  virtual size_t workspace_bytes(const kernels::GemmArgs& args) const = 0;
  virtual void run(const kernels::GemmArgs& args, void* workspace, cudaStream_t stream) = 0;
};

// The kernels of kernels/gemm.h.
std::unique_ptr<GemmEngine> make_native_gemm();

// Throws Error(device) when the library is missing or does not start.
std::unique_ptr<GemmEngine> make_cublaslt_gemm(const cublaslt::Api& api);

// By the name in the configuration.  Throws Error(usage) for another name.
std::unique_ptr<GemmEngine> make_gemm_engine(const std::string& name);

}  // namespace hearth::cuda
