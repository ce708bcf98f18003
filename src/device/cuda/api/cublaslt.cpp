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

Api open_library(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) return without(dlerror());
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
  if (!find.first_missing().empty()) return without(text(name, " has no function ", find.first_missing()));
  return api;
}

// A library may open and yet be newer than the driver can run.
bool starts(const Api& api) {
  Context* context = nullptr;
  if (api.create(&context) != Status::success) return false;
  api.destroy(context);
  return true;
}

}  // namespace

Api load_from(std::span<const char* const> names, const std::function<Api(const char* name)>& open) {
  Api complete;
  bool found = false;
  std::string why;
  for (const char* name : names) {
    Api api = open(name);
    if (!api.missing.empty()) {
      why += (why.empty() ? "" : "; ") + api.missing;
    } else if (starts(api)) {
      return api;
    } else if (!found) {
      complete = std::move(api);
      found = true;
    }
  }
  return found ? complete : without("cuBLASLt cannot be opened (" + why + ")");
}

Api load_from(std::span<const char* const> names) {
  return load_from(names, open_library);
}

}  // namespace hearth::cublaslt
