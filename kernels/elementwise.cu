// Element-wise kernels and sums: cast, add, fill, copy, sum, sum of squares.
//
// Mathematics: one pass over n elements.  A thread handles one 16-byte vector of the widest operand; the last
// thread handles the n % vector elements that fill none.  Grid: enough blocks of 256 threads for all vectors.
// No shared memory but for the sums.  Bytes moved: each operand once; the aim is 90% of copy bandwidth.
//
// Sums are cut into chunks of a fixed size.  One block adds a chunk: each thread its vectors in ascending
// order, then the block in lane and warp order; a second kernel, one block, adds the chunks.  So the result
// depends on n alone, not on the grid.
#include "kernels/elementwise.h"
#include "kernels/ptx.cuh"

namespace hearth::kernels {
namespace {

constexpr int threads = 256;

// ---- one element to one element

// What a thread holds of an operand: as many elements as the operation works on at once.
template <class T, int count>
__device__ __forceinline__ void read(float (&x)[count], const T* from) {
#pragma unroll
  for (int i = 0; i < count; i += Vector<T>::size) {
    const Vector<T> v = ptx::load16_streaming(from + i);
#pragma unroll
    for (int j = 0; j < Vector<T>::size; ++j)
      x[i + j] = to_float(v[j]);
  }
}
__device__ __forceinline__ void assign(float& to, float x) {
  to = x;
}
__device__ __forceinline__ void assign(bf16& to, float x) {
  to = ptx::cvt_bf16(x);
}
template <class T, int count>
__device__ __forceinline__ void write(T* to, const float (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; i += Vector<T>::size) {
    Vector<T> v;
#pragma unroll
    for (int j = 0; j < Vector<T>::size; ++j)
      assign(v[j], x[i + j]);
    store16(to + i, v);
  }
}

constexpr int per_thread = 8;  // elements: one vector of bf16, two of float

template <class From, class To>
__global__ void __launch_bounds__(threads) cast_kernel(const From* from, To* to, int64_t n) {
  const int64_t first = global_thread_index() * per_thread;
  if (first + per_thread <= n) {
    float x[per_thread];
    read(x, from + first);
    write(to + first, x);
    return;
  }
  for (int64_t i = first; i < n; ++i)
    assign(to[i], to_float(from[i]));
}

template <class T>
__global__ void __launch_bounds__(threads) add_kernel(const T* a, const T* b, T* out, int64_t n) {
  const int64_t first = global_thread_index() * per_thread;
  if (first + per_thread <= n) {
    float x[per_thread], y[per_thread];
    read(x, a + first);
    read(y, b + first);
#pragma unroll
    for (int i = 0; i < per_thread; ++i)
      x[i] += y[i];
    write(out + first, x);
    return;
  }
  for (int64_t i = first; i < n; ++i)
    assign(out[i], to_float(a[i]) + to_float(b[i]));
}

template <class... Pointers>
void check_all_aligned(Pointers... pointers) {
  (check_aligned("an operand of an element-wise kernel", pointers), ...);
}

// ---- sums

constexpr int64_t chunk = 32768;

struct Identity {
  __device__ __forceinline__ float operator()(float x) const { return x; }
};
struct Square {
  __device__ __forceinline__ float operator()(float x) const { return x * x; }
};

// partial[block] = sum of f(x) over one chunk.
template <class F, class T>
__global__ void __launch_bounds__(threads) chunk_sum_kernel(const T* x, int64_t n, double* partial) {
  constexpr int size = Vector<T>::size;
  const F f;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk;
  const int64_t end = begin + chunk < n ? begin + chunk : n;
  double total = 0;
  for (int64_t first = begin + threadIdx.x * size; first < end; first += threads * size) {
    float some = 0;
    if (first + size <= end) {
      const Vector<T> v = ptx::load16_streaming(x + first);
#pragma unroll
      for (int i = 0; i < size; ++i)
        some += f(to_float(v[i]));
    } else {
      for (int64_t i = first; i < end; ++i)
        some += f(to_float(x[i]));
    }
    total += some;
  }
  total = block_sum(total, shared_memory());
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

// *total += sum of partial, by one block.
__global__ void __launch_bounds__(threads)
    add_chunks_kernel(const double* partial, int64_t count, double* total) {
  double mine = 0;
  for (int64_t i = threadIdx.x; i < count; i += threads)
    mine += partial[i];
  mine = block_sum(mine, shared_memory());
  if (threadIdx.x == 0) *total += mine;
}

template <class F, class T>
void add_up(const T* x, int64_t n, double* total, void* workspace, cudaStream_t stream) {
  if (n == 0) return;
  check_all_aligned(x, workspace);
  auto* partial = static_cast<double*>(workspace);
  const int64_t chunks = ceil_div(n, chunk);
  constexpr size_t scratch = block_reduce_bytes<double>(threads);
  launch(chunk_sum_kernel<F, T>, static_cast<unsigned>(chunks), threads, scratch, stream, x, n, partial);
  launch(add_chunks_kernel, 1, threads, scratch, stream, partial, chunks, total);
}

template <class From, class To>
void launch_cast(const From* from, To* to, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  check_all_aligned(from, to);
  launch(cast_kernel<From, To>, grid_of(ceil_div(n, per_thread * threads)), threads, 0, stream, from, to, n);
}
template <class T>
void launch_add(const T* a, const T* b, T* out, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  check_all_aligned(a, b, out);
  launch(add_kernel<T>, grid_of(ceil_div(n, per_thread * threads)), threads, 0, stream, a, b, out, n);
}

}  // namespace

void cast(const float* from, bf16* to, int64_t n, cudaStream_t stream) {
  launch_cast(from, to, n, stream);
}
void cast(const bf16* from, float* to, int64_t n, cudaStream_t stream) {
  launch_cast(from, to, n, stream);
}
void add(const float* a, const float* b, float* out, int64_t n, cudaStream_t stream) {
  launch_add(a, b, out, n, stream);
}
void add(const bf16* a, const bf16* b, bf16* out, int64_t n, cudaStream_t stream) {
  launch_add(a, b, out, n, stream);
}

void copy_bytes(const void* from, void* to, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
}
void fill_zero(void* x, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemsetAsync(x, 0, bytes, stream), "clear memory");
}

size_t sum_workspace_bytes(int64_t n) {
  return static_cast<size_t>(ceil_div(n, chunk)) * sizeof(double);
}
void sum(const float* x, int64_t n, double* total, void* workspace, cudaStream_t stream) {
  add_up<Identity>(x, n, total, workspace, stream);
}
void sum_of_squares(const float* x, int64_t n, double* total, void* workspace, cudaStream_t stream) {
  add_up<Square>(x, n, total, workspace, stream);
}
void sum_of_squares(const bf16* x, int64_t n, double* total, void* workspace, cudaStream_t stream) {
  add_up<Square>(x, n, total, workspace, stream);
}

}  // namespace hearth::kernels
