// Fills the table of functions from a shared library.
#include "device/cuda/api/cublaslt.h"

#include <dlfcn.h>

#include "base/error.h"

namespace hearth::cublaslt {

namespace {

// Finds functions in one library and remembers the first that is not there.
class Resolver {
 public:
  explicit Resolver(void* library) : library_(library) {}

  template <class Function>
  void operator()(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (!function && first_missing_.empty()) first_missing_ = name;
  }
  const std::string& first_missing() const { return first_missing_; }

 private:
  void* library_;
  std::string first_missing_;
};

Api without(std::string why) {
  Api api;
  api.missing = std::move(why);
  return api;
}

}  // namespace

Api load_from(std::span<const char* const> names) {
  void* library = nullptr;
  const char* opened = nullptr;
  std::string why;
  for (const char* name : names) {
    opened = name;
    if ((library = dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    why += text(why.empty() ? "" : "; ", dlerror());
  }
  if (!library) return without("cuBLASLt cannot be opened (" + why + ")");

  Api api;
  Resolver find(library);
  find("cublasLtCreate", api.create);
  find("cublasLtDestroy", api.destroy);
  find("cublasLtGetVersion", api.get_version);
  find("cublasLtGetStatusString", api.get_status_string);
  find("cublasLtMatmulDescCreate", api.matmul_desc_create);
  find("cublasLtMatmulDescDestroy", api.matmul_desc_destroy);
  find("cublasLtMatmulDescSetAttribute", api.matmul_desc_set_attribute);
  find("cublasLtMatrixLayoutCreate", api.matrix_layout_create);
  find("cublasLtMatrixLayoutDestroy", api.matrix_layout_destroy);
  find("cublasLtMatmulPreferenceCreate", api.matmul_preference_create);
  find("cublasLtMatmulPreferenceDestroy", api.matmul_preference_destroy);
  find("cublasLtMatmulPreferenceSetAttribute", api.matmul_preference_set_attribute);
  find("cublasLtMatmulAlgoGetHeuristic", api.matmul_algo_get_heuristic);
  find("cublasLtMatmul", api.matmul);
  if (!find.first_missing().empty()) return without(text(opened, " has no function ", find.first_missing()));
  return api;
}

}  // namespace hearth::cublaslt
