#include "conformance.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "support/ranks.h"

namespace hearth {
namespace {

constexpr int64_t sizes[] = {0, 1, 3, 7, 1000, 4097, 70'001};
constexpr int64_t large = 1'500'000;  // several segments, for f32 only

template <class T>
struct Wide {
  using Type = T;
};
template <>
struct Wide<bf16> {
  using Type = float;
};

// Element i of rank r's tensor in experiment `salt`; floats have all their mantissa bits in use.
template <class T>
T value(int rank, int64_t i, uint64_t salt) {
  uint64_t x =
      (static_cast<uint64_t>(rank) * 1'000'003 + static_cast<uint64_t>(i)) * 0x9e3779b97f4a7c15 + salt;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<int64_t>(x % 2'000'001) - 1'000'000);
  else
    return static_cast<T>(static_cast<typename Wide<T>::Type>(static_cast<int64_t>(x >> 11)) * 0x1p-52 - 1);
}

template <class T>
std::vector<T> values(int rank, int64_t n, uint64_t salt) {
  std::vector<T> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    v[static_cast<size_t>(i)] = value<T>(rank, i, salt);
  return v;
}

// Elements [begin, begin + n) of the reduction over `size` ranks, in rank order.
template <class T>
std::vector<T> reduced(int size, int64_t begin, int64_t n, uint64_t salt, Reduce op) {
  using W = typename Wide<T>::Type;
  std::vector<T> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    W sum = static_cast<W>(value<T>(0, begin + i, salt));
    for (int rank = 1; rank < size; ++rank) {
      const W next = static_cast<W>(value<T>(rank, begin + i, salt));
      sum = op == Reduce::sum ? sum + next : std::max(sum, next);
    }
    out[static_cast<size_t>(i)] = static_cast<T>(sum);
  }
  return out;
}

template <class T>
void require_equal(const std::vector<T>& got, const std::vector<T>& want, bool exact,
                   const std::string& what) {
  using W = typename Wide<T>::Type;
  require(got.size() == want.size(), what, ": ", got.size(), " elements, not ", want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
    const double a = static_cast<double>(static_cast<W>(got[i])),
                 b = static_cast<double>(static_cast<W>(want[i]));
    const double tolerance = std::is_same_v<T, bf16> ? 0.02 : std::is_same_v<T, double> ? 1e-12 : 1e-5;
    require(!exact && !std::is_integral_v<T> && std::abs(a - b) <= tolerance * (1 + std::abs(b)), what,
            ": element ", i, " is ", a, ", not ", b);
  }
}

template <class T>
Tensor view(std::vector<T>& v) {
  return Tensor(v.data(), dtype_of<T>(), {static_cast<int64_t>(v.size())});
}

// A guard behind each output: collectives write nothing past their end.
template <class T>
std::vector<T> guarded(int64_t n) {
  return std::vector<T>(static_cast<size_t>(n + 1), value<T>(99, 99, 99));
}
template <class T>
std::vector<T> without_guard(std::vector<T> v, const std::string& what) {
  const T guard = value<T>(99, 99, 99);
  require(std::memcmp(&v.back(), &guard, sizeof(T)) == 0, what, " wrote past the end");
  v.pop_back();
  return v;
}

template <class T>
void check_reductions(Communicator& group, int64_t n, bool exact) {
  const int size = group.size(), rank = group.rank();
  const std::string of = text(" of ", n, " ", name_of(dtype_of<T>()), " on ", size, " ranks");
  for (Reduce op : {Reduce::sum, Reduce::max}) {
    std::vector<T> x = values<T>(rank, n, 1);
    group.all_reduce(view(x), op).wait();
    require_equal(x, reduced<T>(size, 0, n, 1, op), exact, "all_reduce" + of);
  }
  std::vector<T> in = values<T>(rank, n * size, 2);
  std::vector<T> out = guarded<T>(n);
  Tensor part(out.data(), dtype_of<T>(), {n});
  if (size > 1) {
    group.reduce_scatter(view(in), part).wait();
    require_equal(without_guard(out, "reduce_scatter" + of), reduced<T>(size, rank * n, n, 2, Reduce::sum),
                  exact, "reduce_scatter" + of);
    require_equal(in, values<T>(rank, n * size, 2), true, "the input of reduce_scatter" + of);
  }
  group.reduce_scatter(view(in), view(in).rows(rank * n, n)).wait();
  out.assign(in.begin() + rank * n, in.begin() + (rank + 1) * n);
  require_equal(out, reduced<T>(size, rank * n, n, 2, Reduce::sum), exact, "reduce_scatter in place" + of);
}

template <class T>
void check_copies(Communicator& group, int64_t n) {
  const int size = group.size(), rank = group.rank();
  const std::string of = text(" of ", n, " ", name_of(dtype_of<T>()), " on ", size, " ranks");
  std::vector<T> want;
  for (int other = 0; other < size; ++other)
    for (const T& v : values<T>(other, n, 3))
      want.push_back(v);
  std::vector<T> in = values<T>(rank, n, 3);
  if (size > 1) {
    std::vector<T> out = guarded<T>(n * size);
    group.all_gather(view(in), Tensor(out.data(), dtype_of<T>(), {n * size})).wait();
    require_equal(without_guard(out, "all_gather" + of), want, true, "all_gather" + of);
  }
  std::vector<T> all(static_cast<size_t>(n * size));
  std::copy(in.begin(), in.end(), all.begin() + rank * n);
  group.all_gather(view(all).rows(rank * n, n), view(all)).wait();
  require_equal(all, want, true, "all_gather in place" + of);
  for (int root : {0, size / 2, size - 1}) {
    std::vector<T> x = values<T>(rank, n, 4);
    group.broadcast(view(x), root).wait();
    require_equal(x, values<T>(root, n, 4), true, "broadcast" + of);
  }
}

// Everybody sends to the next rank and receives from the one before, at the same time; then twice in a row
// in the same direction, with other sizes.
void check_transfers(Communicator& group, int64_t n, bool exact) {
  const int size = group.size(), rank = group.rank();
  if (size == 1) return;
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  std::vector<float> from = values<float>(rank, n, 5), to = guarded<float>(n);
  const Transfer fused[] = {{Transfer::Direction::send, view(from), next},
                            {Transfer::Direction::receive, Tensor(to.data(), DType::f32, {n}), before}};
  group.exchange(fused).wait();
  require_equal(without_guard(to, "exchange"), values<float>(before, n, 5), true, "exchange");

  std::vector<float> first = values<float>(rank, n, 6), second = values<float>(rank, n + 3, 7);
  std::vector<float> got_first(static_cast<size_t>(n)), got_second(static_cast<size_t>(n + 3));
  if (exact) {
    Request a = group.send(view(first), next), b = group.send(view(second), next);
    Request c = group.recv(view(got_first), before), d = group.recv(view(got_second), before);
    d.wait();
    c.wait();
    a.wait();
    b.wait();
  } else {
    using enum Transfer::Direction;
    const Transfer four[] = {{send, view(first), next},
                             {send, view(second), next},
                             {receive, view(got_first), before},
                             {receive, view(got_second), before}};
    group.exchange(four).wait();
  }
  require_equal(got_first, values<float>(before, n, 6), true, "first of two transfers");
  require_equal(got_second, values<float>(before, n + 3, 7), true, "second of two transfers");
}

// Several collectives under way at once finish in order, each with its own data.
void check_pipelining(Communicator& group) {
  std::vector<std::vector<float>> x;
  std::vector<Request> requests;
  for (uint64_t k = 0; k < 8; ++k)
    x.push_back(values<float>(group.rank(), 500 + 3000 * static_cast<int64_t>(k), 10 + k));
  for (auto& v : x)
    requests.push_back(group.all_reduce(view(v), Reduce::sum));
  for (size_t k = 8; k-- > 0;)
    requests[k].wait();
  for (uint64_t k = 0; k < 8; ++k)
    require_equal(x[k],
                  reduced<float>(group.size(), 0, 500 + 3000 * static_cast<int64_t>(k), 10 + k, Reduce::sum),
                  false, "one of eight reductions");
}

template <class T>
void check_type(Communicator& group, bool exact) {
  for (int64_t n : sizes) {
    check_reductions<T>(group, n, exact);
    check_copies<T>(group, n);
  }
}

void check_nan(Communicator& group, bool exact) {
  for (int culprit = 0; culprit < group.size(); ++culprit)
    for (Reduce op : {Reduce::sum, Reduce::max}) {
      if (op == Reduce::max && !exact) continue;
      std::vector<float> x(3, 1.0f);
      if (group.rank() == culprit) x[1] = std::nanf("");
      group.all_reduce(view(x), op).wait();
      require(!std::isnan(x[0]) && std::isnan(x[1]) && !std::isnan(x[2]), "a NaN must reach every rank");
    }
}

}  // namespace

void check_conformance(Communicator& group, bool exact, Types types) {
  check_type<float>(group, exact);
  check_type<bf16>(group, exact);
  if (types == Types::all) {
    check_type<double>(group, exact);
    check_type<int64_t>(group, true);
    check_type<int32_t>(group, true);
  }
  check_reductions<float>(group, large, exact);
  check_copies<float>(group, large);
  check_copies<uint8_t>(group, 5001);
  for (int64_t n : sizes)
    check_transfers(group, n, exact);
  check_pipelining(group);
  check_nan(group, exact);
  group.barrier();
  group.barrier();
}

}  // namespace hearth
