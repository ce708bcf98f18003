// The cuBLASLt engine.
//
// cuBLASLt stores matrices column after column: our C [m, n], row after row, is its D with n rows and m
// columns, the same bytes.  So D = C^T = B^T A^T, and its first operand is our B:
//
//   Product           op(A) = our B            op(B) = our A            D
//   forward           w [n, k] transposed      x [m, k] as it is        bf16, beta = 0
//   input_gradient    w [k, n] as it is        dy [m, k] as it is       bf16, beta = 0
//   weight_gradient   x [k, n] as it is        dy [k, m] transposed     fp32, beta = 1
//
// A row stride is a leading dimension, and a bias [n] has a value for each of D's rows, as cuBLASLt wants.
// Its gradient is a sum over k of our A, which is epilogue BGRADB; that overwrites a vector of D's type,
// fp32, while column_sums accumulates: it goes to the workspace and is added by a small kernel.
//
// The library may have no algorithm with an epilogue: NVIDIA promises none for every shape and type.  Then it
// computes the product alone, and kernels/unfused.h and gelu_forward() do the rest.
//
// Deterministic: a split sum over k may only be added up in fp32 and in a step of its own, never in place.
// NVIDIA promises the same bits for the same library, GPU and problem.
#include <compare>
#include <map>
#include <optional>

#include "base/error.h"
#include "device/cuda/gemm_engine.h"
#include "kernels/elementwise.h"
#include "kernels/unfused.h"

namespace hearth::cuda {

namespace {

using cublaslt::Api;
using cublaslt::DataType;
using cublaslt::DescAttribute;
using cublaslt::Epilogue;
using cublaslt::MatmulDesc;
using cublaslt::MatrixLayout;
using cublaslt::Operation;
using cublaslt::Preference;
using cublaslt::PreferenceAttribute;
using cublaslt::Status;
using kernels::GemmArgs;
using kernels::Product;

constexpr size_t library_workspace_bytes = size_t{32} << 20;  // what NVIDIA recommends for Hopper
constexpr uint32_t alignment = 16;                            // of all addresses, see GemmArgs

template <class T>
using Owned = std::unique_ptr<T, Status (*)(T*)>;

// Whatever the choice of an algorithm depends on.
struct Problem {
  Product product;
  Epilogue epilogue;
  int64_t m, n, k, a_stride, b_stride, c_stride, aux_stride;

  auto operator<=>(const Problem&) const = default;
  bool accumulates() const { return product == Product::weight_gradient; }
};

// A problem in cuBLASLt's words, with the chosen algorithm.
struct Plan {
  Owned<MatmulDesc> operation;
  Owned<MatrixLayout> a, b, d;
  cublaslt::Algorithm algorithm{};
};

Epilogue forward_epilogue(const GemmArgs& args) {
  if (!args.gelu) return args.bias ? Epilogue::bias : Epilogue::none;
  if (args.pre) return args.bias ? Epilogue::gelu_aux_bias : Epilogue::gelu_aux;
  return args.bias ? Epilogue::gelu_bias : Epilogue::gelu;
}

Epilogue epilogue_of(const GemmArgs& args) {
  switch (args.product) {
    case Product::forward:
      return forward_epilogue(args);
    case Product::input_gradient:
      return args.factor_pre ? Epilogue::dgelu : Epilogue::none;
    case Product::weight_gradient:
      return args.column_sums ? Epilogue::bgrad_b : Epilogue::none;
  }
  return Epilogue::none;
}

bool has_bias(Epilogue epilogue) {
  return (static_cast<uint32_t>(epilogue) & static_cast<uint32_t>(Epilogue::bias)) ||
         epilogue == Epilogue::bgrad_b;
}
bool has_aux(Epilogue epilogue) {
  return epilogue == Epilogue::gelu_aux || epilogue == Epilogue::gelu_aux_bias || epilogue == Epilogue::dgelu;
}

// Whether a kernel of ours can do it behind the product; a bias alone is what every product can have.
bool has_own_kernel(Epilogue epilogue) {
  return epilogue != Epilogue::none && epilogue != Epilogue::bias;
}

Problem problem_of(const GemmArgs& args) {
  const Epilogue epilogue = epilogue_of(args);
  return {
      .product = args.product,
      .epilogue = epilogue,
      .m = args.m,
      .n = args.n,
      .k = args.k,
      .a_stride = args.a_stride,
      .b_stride = args.b_stride,
      .c_stride = args.c_stride,
      .aux_stride = has_aux(epilogue) ? args.pre_stride : 0,
  };
}

class CublasLtGemm final : public GemmEngine {
 public:
  explicit CublasLtGemm(const Api& api) : api_(api), context_(nullptr, api.destroy) {
    cublaslt::Context* context = nullptr;
    const Status status = api_.create(&context);
    if (status != Status::success)
      fail_device("device.gemm = \"cublaslt\": cuBLASLt does not start (", api_.get_status_string(status),
                  "); use device.gemm = \"native\"");
    context_.reset(context);
  }

  std::string description() const override {
    const size_t version = api_.get_version();
    return text("cuBLASLt ", version / 10000, ".", version / 100 % 100);
  }

  size_t workspace_bytes(const GemmArgs& args) const override {
    return library_workspace_bytes + (args.column_sums ? static_cast<size_t>(args.m) * sizeof(float) : 0);
  }

  void run(const GemmArgs& args, void* workspace, cudaStream_t stream) override {
    if (args.m == 0 || args.n == 0 || args.k == 0) return;
    const Problem problem = problem_of(args);
    if (const auto& plan = plan_for(problem))
      run_fused(problem, *plan, args, workspace, stream);
    else if (has_own_kernel(problem.epilogue))
      run_in_two(args, workspace, stream);
    else
      require(Status::not_supported, problem);
  }

 private:
  void run_fused(const Problem& problem, const Plan& plan, const GemmArgs& args, void* workspace,
                 cudaStream_t stream) {
    auto* sums = reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + library_workspace_bytes);
    if (has_bias(problem.epilogue))
      set(problem, *plan.operation, DescAttribute::bias_pointer,
          args.column_sums ? static_cast<const void*>(sums) : args.bias);
    if (has_aux(problem.epilogue))
      set(problem, *plan.operation, DescAttribute::aux_pointer,
          static_cast<const void*>(args.pre ? args.pre : args.factor_pre));
    multiply(problem, plan, args, workspace, stream);
    if (args.column_sums) kernels::add(sums, args.column_sums, args.column_sums, args.m, stream);
  }

  // The product without its epilogue, and that by a kernel.
  void run_in_two(const GemmArgs& args, void* workspace, cudaStream_t stream) {
    GemmArgs product = args;
    product.gelu = false;
    product.pre = nullptr;
    product.factor_pre = nullptr;
    product.column_sums = nullptr;
    if (args.pre) product.c = args.pre, product.c_stride = args.pre_stride;
    run(product, workspace, stream);
    if (args.gelu)
      kernels::gelu_forward(product.c, product.c_stride, args.c, args.c_stride, args.m, args.n, stream);
    if (args.factor_pre)
      kernels::multiply_gelu_derivative(args.c, args.c_stride, args.factor_pre, args.pre_stride, args.m,
                                        args.n, stream);
    if (args.column_sums)
      kernels::add_column_sums(args.a, args.a_stride, args.k, args.m, args.column_sums, stream);
  }

  void multiply(const Problem& problem, const Plan& plan, const GemmArgs& args, void* workspace,
                cudaStream_t stream) {
    const float alpha = 1, beta = problem.accumulates() ? 1 : 0;
    void* d = problem.accumulates() ? static_cast<void*>(args.accumulator) : args.c;
    require(api_.matmul(context_.get(), plan.operation.get(), &alpha, args.b, plan.a.get(), args.a,
                        plan.b.get(), &beta, d, plan.d.get(), d, plan.d.get(), &plan.algorithm, workspace,
                        library_workspace_bytes, stream),
            problem);
  }

  // Nothing: the library has no algorithm.
  const std::optional<Plan>& plan_for(const Problem& problem) {
    const auto found = plans_.find(problem);
    return found != plans_.end() ? found->second : plans_.emplace(problem, make_plan(problem)).first->second;
  }

  std::optional<Plan> make_plan(const Problem& p) const {
    const bool b_k_major = p.product == Product::forward;
    const bool a_k_major = p.product != Product::weight_gradient;
    Plan plan{operation(p, b_k_major ? Operation::transpose : Operation::none,
                        a_k_major ? Operation::none : Operation::transpose),
              layout(p, DataType::bf16, b_k_major ? p.n : p.k, b_k_major ? p.k : p.n, p.b_stride),
              layout(p, DataType::bf16, a_k_major ? p.m : p.k, a_k_major ? p.k : p.m, p.a_stride),
              layout(p, p.accumulates() ? DataType::f32 : DataType::bf16, p.m, p.n, p.c_stride)};
    const Owned<Preference> wanted = preference(p);
    cublaslt::HeuristicResult best{};
    int found = 0;
    const Status status =
        api_.matmul_algo_get_heuristic(context_.get(), plan.operation.get(), plan.a.get(), plan.b.get(),
                                       plan.d.get(), plan.d.get(), wanted.get(), 1, &best, &found);
    if (status != Status::not_supported) require(status, p);
    if (status != Status::success || found == 0 || best.state != Status::success) return std::nullopt;
    plan.algorithm = best.algorithm;
    return plan;
  }

  Owned<MatmulDesc> operation(const Problem& p, Operation a, Operation b) const {
    MatmulDesc* made = nullptr;
    require(api_.matmul_desc_create(&made, cublaslt::ComputeType::f32, DataType::f32), p);
    Owned<MatmulDesc> owned(made, api_.matmul_desc_destroy);
    set(p, *made, DescAttribute::transpose_a, a);
    set(p, *made, DescAttribute::transpose_b, b);
    set(p, *made, DescAttribute::epilogue, p.epilogue);
    // The choice of an algorithm reads how well these addresses are aligned, and nothing else of them: each
    // call of the problem brings its own.
    const void* aligned = reinterpret_cast<const void*>(uintptr_t{alignment});
    if (has_bias(p.epilogue)) set(p, *made, DescAttribute::bias_pointer, aligned);
    if (has_aux(p.epilogue)) {
      set(p, *made, DescAttribute::aux_pointer, aligned);
      set(p, *made, DescAttribute::aux_stride, p.aux_stride);
    }
    return owned;
  }

  // Of a matrix with `rows` rows, stored row after row: the library sees its transpose.
  Owned<MatrixLayout> layout(const Problem& p, DataType type, int64_t rows, int64_t columns,
                             int64_t stride) const {
    MatrixLayout* made = nullptr;
    require(api_.matrix_layout_create(&made, type, static_cast<uint64_t>(columns),
                                      static_cast<uint64_t>(rows), stride),
            p);
    return {made, api_.matrix_layout_destroy};
  }

  Owned<Preference> preference(const Problem& p) const {
    Preference* made = nullptr;
    require(api_.matmul_preference_create(&made), p);
    Owned<Preference> owned(made, api_.matmul_preference_destroy);
    auto prefer = [&](PreferenceAttribute attribute, auto value) {
      require(api_.matmul_preference_set_attribute(made, attribute, &value, sizeof value), p);
    };
    prefer(PreferenceAttribute::workspace_bytes, uint64_t{library_workspace_bytes});
    prefer(PreferenceAttribute::reduction_schemes, cublaslt::ReductionScheme::compute_type);
    prefer(PreferenceAttribute::alignment_a, alignment);
    prefer(PreferenceAttribute::alignment_b, alignment);
    prefer(PreferenceAttribute::alignment_c, alignment);
    prefer(PreferenceAttribute::alignment_d, alignment);
    return owned;
  }

  template <class T>
  void set(const Problem& p, MatmulDesc& operation, DescAttribute attribute, const T& value) const {
    require(api_.matmul_desc_set_attribute(&operation, attribute, &value, sizeof value), p);
  }

  void require(Status status, const Problem& p) const {
    if (status == Status::success) return;
    static constexpr const char* names[] = {"forward", "input gradient", "weight gradient"};
    fail_device("device.gemm = \"cublaslt\": ", names[static_cast<int>(p.product)], " product of ", p.m,
                " x ", p.n, " x ", p.k, " with epilogue ", static_cast<uint32_t>(p.epilogue),
                " failed: ", api_.get_status_string(status), "; use device.gemm = \"native\"");
  }

  Api api_;
  Owned<cublaslt::Context> context_;
  std::map<Problem, std::optional<Plan>> plans_;
};

}  // namespace

std::unique_ptr<GemmEngine> make_cublaslt_gemm(const Api& api) {
  if (!api.missing.empty())
    fail_device("device.gemm = \"cublaslt\": ", api.missing,
                "; install NVIDIA's cuBLAS 12 or 13, or use device.gemm = \"native\"");
  return std::make_unique<CublasLtGemm>(api);
}

}  // namespace hearth::cuda
