// The stand-in for cuBLASLt: the functions, and what they refuse.
//
// It knows the types, epilogues and attributes that Hearth uses and refuses all others.  Beyond what NVIDIA's
// documentation asks for, an algorithm serves only the problem, and the alignment of addresses, that it was
// chosen for; the way of adding up parts of k is the worst that the preference allows; and all of the
// workspace that the caller offers is overwritten.
#include "emulator/cublaslt.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "emulator/device_memory.h"
#include "emulator/emulator.h"
#include "emulator/streams.h"

namespace hearth::cublaslt {

bool has_bias(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::bias:
    case Epilogue::gelu_bias:
    case Epilogue::gelu_aux_bias:
    case Epilogue::bgrad_b:
      return true;
    default:
      return false;
  }
}

bool has_aux(Epilogue epilogue) {
  return epilogue == Epilogue::gelu_aux || epilogue == Epilogue::gelu_aux_bias || epilogue == Epilogue::dgelu;
}

size_t bytes_of(DataType type) {
  return type == DataType::bf16 ? 2 : 4;
}

namespace {

using emulator::device_memory;
using emulator::Failure;

// ---- descriptors

Status create(Context** context) {
  if (!context) return Status::invalid_value;
  if (!emulator::options().present) return Status::not_initialized;
  *context = new Context;
  return Status::success;
}
Status destroy(Context* context) {
  if (!context) return Status::not_initialized;
  delete context;
  return Status::success;
}
size_t get_version() {
  return 130000;
}
const char* get_status_string(Status status) {
  switch (status) {
    case Status::success:
      return "success";
    case Status::not_initialized:
      return "the library was not initialized";
    case Status::invalid_value:
      return "an unsupported value or parameter was passed to the function";
    case Status::execution_failed:
      return "the function failed to launch on the GPU";
    case Status::not_supported:
      return "the requested functionality is not supported";
  }
  return "an unknown status";
}

Status matmul_desc_create(MatmulDesc** made, ComputeType compute, DataType scale) {
  if (!made) return Status::invalid_value;
  if (compute != ComputeType::f32 || scale != DataType::f32) return Status::not_supported;
  *made = new MatmulDesc;
  return Status::success;
}
Status matrix_layout_create(MatrixLayout** made, DataType type, uint64_t rows, uint64_t columns,
                            int64_t stride) {
  if (!made) return Status::invalid_value;
  if (type != DataType::f32 && type != DataType::bf16) return Status::not_supported;
  *made = new MatrixLayout{type, rows, columns, stride};
  return Status::success;
}
Status matmul_preference_create(Preference** made) {
  if (!made) return Status::invalid_value;
  *made = new Preference;
  return Status::success;
}
template <class T>
Status release(T* made) {
  delete made;
  return Status::success;
}

template <class T>
Status assign(T& to, const void* from, size_t bytes) {
  if (!from || bytes != sizeof to) return Status::invalid_value;
  std::memcpy(&to, from, bytes);
  return Status::success;
}

Status matmul_desc_set_attribute(MatmulDesc* operation, DescAttribute attribute, const void* value,
                                 size_t bytes) {
  if (!operation) return Status::invalid_value;
  switch (attribute) {
    case DescAttribute::transpose_a:
      return assign(operation->a, value, bytes);
    case DescAttribute::transpose_b:
      return assign(operation->b, value, bytes);
    case DescAttribute::epilogue:
      return assign(operation->epilogue, value, bytes);
    case DescAttribute::bias_pointer:
      return assign(operation->bias, value, bytes);
    case DescAttribute::aux_pointer:
      return assign(operation->aux, value, bytes);
    case DescAttribute::aux_stride:
      return assign(operation->aux_stride, value, bytes);
  }
  return Status::invalid_value;
}

Status matmul_preference_set_attribute(Preference* preference, PreferenceAttribute attribute,
                                       const void* value, size_t bytes) {
  if (!preference) return Status::invalid_value;
  switch (attribute) {
    case PreferenceAttribute::workspace_bytes:
      return assign(preference->workspace_bytes, value, bytes);
    case PreferenceAttribute::reduction_schemes:
      return assign(preference->reduction_schemes, value, bytes);
    case PreferenceAttribute::alignment_a:
      return assign(preference->alignment_a, value, bytes);
    case PreferenceAttribute::alignment_b:
      return assign(preference->alignment_b, value, bytes);
    case PreferenceAttribute::alignment_c:
      return assign(preference->alignment_c, value, bytes);
    case PreferenceAttribute::alignment_d:
      return assign(preference->alignment_d, value, bytes);
  }
  return Status::invalid_value;
}

// ---- what is refused

Status check_layouts(const Matmul& p) {
  for (const MatrixLayout* x : {&p.a_layout, &p.b_layout, &p.c_layout, &p.d_layout})
    if (x->rows == 0 || x->columns == 0 || x->stride < static_cast<int64_t>(x->rows))
      return Status::invalid_value;
  const auto shape = [](const MatrixLayout& x, Operation operation) {
    const bool transposed = operation == Operation::transpose;
    return std::pair(transposed ? x.columns : x.rows, transposed ? x.rows : x.columns);
  };
  const auto [m, k] = shape(p.a_layout, p.operation.a);
  const auto [k_of_b, n] = shape(p.b_layout, p.operation.b);
  const bool fit = k == k_of_b && p.d_layout.rows == m && p.d_layout.columns == n && p.c_layout.rows == m &&
                   p.c_layout.columns == n;
  if (!fit) return Status::invalid_value;
  const bool known = p.a_layout.type == DataType::bf16 && p.b_layout.type == DataType::bf16 &&
                     p.c_layout.type == p.d_layout.type;
  return known ? Status::success : Status::not_supported;
}

Status check_epilogue(const Matmul& p) {
  const MatmulDesc& operation = p.operation;
  switch (operation.epilogue) {
    case Epilogue::none:
    case Epilogue::bias:
    case Epilogue::bgrad_b:
      break;
    case Epilogue::gelu:
    case Epilogue::gelu_bias:
    case Epilogue::gelu_aux:
    case Epilogue::gelu_aux_bias:
    case Epilogue::dgelu:
      if (p.d_layout.type != DataType::bf16) return Status::not_supported;
      break;
    default:
      return Status::not_supported;
  }
  if (has_bias(operation.epilogue) && !operation.bias) return Status::invalid_value;
  if (has_aux(operation.epilogue)) {
    const bool fits =
        operation.aux_stride % 8 == 0 && operation.aux_stride >= static_cast<int64_t>(p.d_layout.rows);
    if (!operation.aux || !fits) return Status::invalid_value;
  }
  return Status::success;
}

Status check(const Matmul& p) {
  const Status layouts = check_layouts(p);
  return layouts == Status::success ? check_epilogue(p) : layouts;
}

Status describe(Matmul& p, const MatmulDesc* operation, const MatrixLayout* a, const MatrixLayout* b,
                const MatrixLayout* c, const MatrixLayout* d) {
  if (!operation || !a || !b || !c || !d) return Status::invalid_value;
  p = {};
  p.operation = *operation;
  p.a_layout = *a;
  p.b_layout = *b;
  p.c_layout = *c;
  p.d_layout = *d;
  return check(p);
}

// ---- algorithms

// What an algorithm says.
struct Choice {
  uint64_t problem;
  uint64_t workspace_bytes;
  ReductionScheme scheme;
  uint16_t alignment_a, alignment_b, alignment_c, alignment_d;  // bytes that it relies on
  uint16_t alignment_bias, alignment_aux;
};
static_assert(sizeof(Choice) <= sizeof(Algorithm));

uint64_t fingerprint(const Matmul& p) {
  uint64_t hash = 14695981039346656037u;
  auto add = [&](auto value) { hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211u; };
  for (const MatrixLayout* x : {&p.a_layout, &p.b_layout, &p.c_layout, &p.d_layout}) {
    add(x->type);
    add(x->rows);
    add(x->columns);
    add(x->stride);
  }
  add(p.operation.a);
  add(p.operation.b);
  add(p.operation.epilogue);
  add(has_aux(p.operation.epilogue) ? p.operation.aux_stride : 0);
  return hash;
}

uint16_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<uint16_t>(bits & (~bits + 1));
}

ReductionScheme worst_scheme(const Preference& preference) {
  for (const ReductionScheme scheme :
       {ReductionScheme::in_place, ReductionScheme::output_type, ReductionScheme::compute_type})
    if (preference.reduction_schemes & static_cast<uint32_t>(scheme)) return scheme;
  return ReductionScheme::none;
}

Status matmul_algo_get_heuristic(Context* context, MatmulDesc* operation, MatrixLayout* a, MatrixLayout* b,
                                 MatrixLayout* c, MatrixLayout* d, Preference* preference, int wanted,
                                 HeuristicResult* results, int* found) {
  if (!context) return Status::not_initialized;
  if (!preference || wanted <= 0 || !results || !found) return Status::invalid_value;
  Matmul p;
  *found = 0;
  if (const Status status = describe(p, operation, a, b, c, d); status != Status::success) return status;
  Choice choice{};
  choice.problem = fingerprint(p);
  choice.scheme = worst_scheme(*preference);
  choice.workspace_bytes = std::min<uint64_t>(preference->workspace_bytes, 1 << 20);
  if (choice.workspace_bytes == 0) choice.scheme = ReductionScheme::none;
  choice.alignment_a = static_cast<uint16_t>(preference->alignment_a);
  choice.alignment_b = static_cast<uint16_t>(preference->alignment_b);
  choice.alignment_c = static_cast<uint16_t>(preference->alignment_c);
  choice.alignment_d = static_cast<uint16_t>(preference->alignment_d);
  if (has_bias(p.operation.epilogue)) choice.alignment_bias = alignment_of(p.operation.bias);
  if (has_aux(p.operation.epilogue)) choice.alignment_aux = alignment_of(p.operation.aux);
  results[0] = {};
  std::memcpy(&results[0].algorithm, &choice, sizeof choice);
  results[0].workspace_bytes = choice.workspace_bytes;
  results[0].state = Status::success;
  results[0].waves = 1;
  *found = 1;
  return Status::success;
}

// ---- the product

Status check_choice(const Choice& choice, const Matmul& p, const void* workspace, size_t workspace_bytes) {
  if (choice.problem != fingerprint(p)) return Status::invalid_value;
  if (workspace_bytes < choice.workspace_bytes || (choice.workspace_bytes && !workspace) ||
      alignment_of(workspace) < 16)
    return Status::invalid_value;
  const bool aligned = alignment_of(p.a) >= choice.alignment_a && alignment_of(p.b) >= choice.alignment_b &&
                       (p.beta == 0 || alignment_of(p.c) >= choice.alignment_c) &&
                       alignment_of(p.d) >= choice.alignment_d &&
                       alignment_of(p.operation.bias) >= choice.alignment_bias &&
                       alignment_of(p.operation.aux) >= choice.alignment_aux;
  return aligned ? Status::success : Status::not_supported;
}

// Not a status: NVIDIA's library cannot know, and would write there.
void require_memory(const char* what, const void* address, size_t bytes) {
  if (bytes == 0 || device_memory().find(address).contains(address, bytes)) return;
  throw Failure(
      text("cublasLtMatmul: ", what, " takes ", bytes, " bytes ", device_memory().describe(address)));
}

size_t extent(const MatrixLayout& x) {
  return ((x.columns - 1) * static_cast<size_t>(x.stride) + x.rows) * bytes_of(x.type);
}

void require_memory(const Matmul& p) {
  const MatmulDesc& operation = p.operation;
  require_memory("A", p.a, extent(p.a_layout));
  require_memory("B", p.b, extent(p.b_layout));
  if (p.beta != 0) require_memory("C", p.c, extent(p.c_layout));
  require_memory("D", p.d, extent(p.d_layout));
  const size_t values = operation.epilogue == Epilogue::bgrad_b ? p.d_layout.columns : p.d_layout.rows;
  if (has_bias(operation.epilogue))
    require_memory("the bias", operation.bias, values * bytes_of(p.d_layout.type));
  MatrixLayout aux = p.d_layout;
  aux.stride = operation.aux_stride;
  if (has_aux(operation.epilogue)) require_memory("aux", operation.aux, extent(aux));
}

Status matmul(Context* context, MatmulDesc* operation, const void* alpha, const void* a,
              MatrixLayout* a_layout, const void* b, MatrixLayout* b_layout, const void* beta, const void* c,
              MatrixLayout* c_layout, void* d, MatrixLayout* d_layout, const Algorithm* algorithm,
              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (!context) return Status::not_initialized;
  if (!alpha || !beta || !a || !b || !d || !algorithm) return Status::invalid_value;
  Matmul p;
  Status status = describe(p, operation, a_layout, b_layout, c_layout, d_layout);
  if (status != Status::success) return status;
  p.a = a;
  p.b = b;
  p.c = c;
  p.d = d;
  p.alpha = *static_cast<const float*>(alpha);
  p.beta = *static_cast<const float*>(beta);
  p.number = context->products++;
  if (p.beta != 0 && !c) return Status::invalid_value;
  Choice choice;
  std::memcpy(&choice, algorithm, sizeof choice);
  p.scheme = choice.scheme;
  status = check_choice(choice, p, workspace, workspace_bytes);
  if (status != Status::success) return status;
  require_memory(p);
  require_memory("the workspace", workspace, workspace_bytes);
  emulator::enqueue_work(stream, [p, workspace, workspace_bytes] {
    compute(p);
    // Last, so that results that somebody put there are lost too; its ends alone, for speed.
    const size_t end = std::min<size_t>(workspace_bytes, 4096);
    std::memset(workspace, 0xff, end);
    std::memset(static_cast<char*>(workspace) + workspace_bytes - end, 0xff, end);
  });
  return Status::success;
}

}  // namespace

Api load() {
  return {.create = create,
          .destroy = destroy,
          .get_version = get_version,
          .get_status_string = get_status_string,
          .matmul_desc_create = matmul_desc_create,
          .matmul_desc_destroy = release<MatmulDesc>,
          .matmul_desc_set_attribute = matmul_desc_set_attribute,
          .matrix_layout_create = matrix_layout_create,
          .matrix_layout_destroy = release<MatrixLayout>,
          .matmul_preference_create = matmul_preference_create,
          .matmul_preference_destroy = release<Preference>,
          .matmul_preference_set_attribute = matmul_preference_set_attribute,
          .matmul_algo_get_heuristic = matmul_algo_get_heuristic,
          .matmul = matmul,
          .missing = ""};
}

}  // namespace hearth::cublaslt
