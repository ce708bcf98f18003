// Broken parallel trainings: each mutant leaves out, doubles or misplaces one thing that layouts need, from
// outside of the code under test, and the comparison with one process must see it.
#include <gtest/gtest.h>

#include <cstring>

#include "parallel/layout_trace.h"

namespace hearth {
namespace {

// Passes everything on but for what a mutant overrides.
class Decorator : public Communicator {
 public:
  explicit Decorator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Request all_reduce(const Tensor& t, Reduce op) override { return inner_->all_reduce(t, op); }
  Request reduce_scatter(const Tensor& in, const Tensor& out) override {
    return inner_->reduce_scatter(in, out);
  }
  Request all_gather(const Tensor& in, const Tensor& out) override { return inner_->all_gather(in, out); }
  Request broadcast(const Tensor& t, int root) override { return inner_->broadcast(t, root); }
  Request exchange(std::span<const Transfer> transfers) override { return inner_->exchange(transfers); }
  void barrier() override { inner_->barrier(); }

 protected:
  template <class T>
  static void scale_as(const Tensor& t, double factor) {
    for (int64_t i = 0; i < t.elements(); ++i)
      static_cast<T*>(t.data)[i] = static_cast<T>(static_cast<double>(static_cast<T*>(t.data)[i]) * factor);
  }
  static void scale(const Tensor& t, double factor) {
    t.dtype == DType::f64 ? scale_as<double>(t, factor) : scale_as<float>(t, factor);
  }
  std::unique_ptr<Communicator> inner_;
};

// Which all_reduce of a rank is spoilt: by what it reduces.
using Selects = std::function<bool(const Tensor&, Reduce)>;

// The collective happens, so that nobody waits for ever, but its result is not used.
class DropsReduction : public Decorator {
 public:
  DropsReduction(std::unique_ptr<Communicator> inner, Selects selects)
      : Decorator(std::move(inner)), selects_(selects) {}
  Request all_reduce(const Tensor& t, Reduce op) override {
    if (!selects_(t, op)) return inner_->all_reduce(t, op);
    std::vector<std::byte> own(static_cast<size_t>(t.bytes()));
    std::memcpy(own.data(), t.data, own.size());
    inner_->all_reduce(t, op).wait();
    std::memcpy(t.data, own.data(), own.size());
    return {};
  }

 private:
  Selects selects_;
};

// The result is multiplied by a wrong factor: a mean instead of a sum, or a sum taken twice.
class ScalesReduction : public Decorator {
 public:
  ScalesReduction(std::unique_ptr<Communicator> inner, double factor, Selects selects)
      : Decorator(std::move(inner)), factor_(factor), selects_(selects) {}
  Request all_reduce(const Tensor& t, Reduce op) override {
    inner_->all_reduce(t, op).wait();
    if (selects_(t, op)) scale(t, factor_);
    return {};
  }

 private:
  double factor_;
  Selects selects_;
};

class MeansInReduceScatter : public Decorator {
 public:
  using Decorator::Decorator;
  Request reduce_scatter(const Tensor& in, const Tensor& out) override {
    inner_->reduce_scatter(in, out).wait();
    scale(out, 1.0 / size());
    return {};
  }
};

// What arrives from the other end of the pipeline is thrown away where it has the size of the embedding.
class DropsTiedSum : public Decorator {
 public:
  using Decorator::Decorator;
  Request exchange(std::span<const Transfer> transfers) override {
    inner_->exchange(transfers).wait();
    for (const Transfer& t : transfers)
      if (t.direction == Transfer::Direction::receive && t.tensor.dim(0) == 128) scale(t.tensor, 0.0);
    return {};
  }
};

// Gradients between stages get a wrong factor.
class ScalesBoundary : public Decorator {
 public:
  using Decorator::Decorator;
  Request exchange(std::span<const Transfer> transfers) override {
    inner_->exchange(transfers).wait();
    for (const Transfer& t : transfers)
      if (t.direction == Transfer::Direction::receive && t.peer > rank() && t.tensor.dim(0) != 128)
        scale(t.tensor, 1.01);
    return {};
  }
};

// The gathered weights are one rank's own, everywhere.
class ForgetsGather : public Decorator {
 public:
  using Decorator::Decorator;
  Request all_gather(const Tensor& in, const Tensor& out) override {
    std::vector<std::byte> old(static_cast<size_t>(out.bytes()));
    std::memcpy(old.data(), out.data, old.size());
    inner_->all_gather(in, out).wait();
    // The other ranks' parts stay what they were after the first step.
    if (++calls_ > 8)
      for (int r = 0; r < size(); ++r)
        if (r != rank())
          std::memcpy(static_cast<std::byte*>(out.data) + r * in.bytes(), old.data() + r * in.bytes(),
                      static_cast<size_t>(in.bytes()));
    return {};
  }

 private:
  int calls_ = 0;
};

template <class Mutant, class... Arguments>
Decorate on(Axis where, Arguments... arguments) {
  return [=](Axis axis, std::unique_ptr<Communicator> c) -> std::unique_ptr<Communicator> {
    if (axis != where) return c;
    return std::make_unique<Mutant>(std::move(c), arguments...);
  };
}

template <class Mutant>
Decorate plain_on(Axis where) {
  return [=](Axis axis, std::unique_ptr<Communicator> c) -> std::unique_ptr<Communicator> {
    if (axis != where) return c;
    return std::make_unique<Mutant>(std::move(c));
  };
}

constexpr int64_t activation = 16 * 64;  // one microbatch of the residual stream
bool totals(const Tensor& t) {
  return t.elements() == 3;
}
bool whole_gradients(const Tensor& t) {
  return t.elements() > activation;
}
bool valid_count(const Tensor& t) {
  return t.elements() == 1;
}

struct Mutant {
  const char* name;
  Layout layout;
  Decorate decorate;
};

std::vector<Mutant> mutants() {
  const Layout tensor{.tensor = 2}, data{.data = 2}, zero{.data = 2, .zero = 1}, pipeline{.pipeline = 2};
  const Selects sums = [](const Tensor& t, Reduce op) {
    return op == Reduce::sum && t.elements() == activation;
  };
  const Selects maxima = [](const Tensor&, Reduce op) { return op == Reduce::max; };
  const Selects softmax = [](const Tensor& t, Reduce op) {
    return op == Reduce::sum && t.elements() == 2 * 16;
  };
  const Selects gradients = [](const Tensor& t, Reduce) { return whole_gradients(t); };
  const Selects norm = [](const Tensor& t, Reduce) { return totals(t); };
  const Selects count = [](const Tensor& t, Reduce) { return valid_count(t); };
  return {
      {"the sums of row-parallel linears are left out", tensor, on<DropsReduction>(Axis::tensor, sums)},
      {"the sums of row-parallel linears are means", tensor, on<ScalesReduction>(Axis::tensor, 0.5, sums)},
      {"each vocabulary shard keeps its own maximum", tensor, on<DropsReduction>(Axis::tensor, maxima)},
      {"each vocabulary shard keeps its own softmax sum", tensor, on<DropsReduction>(Axis::tensor, softmax)},
      {"the norm is one tensor rank's", tensor, on<DropsReduction>(Axis::tensor, norm)},
      {"copies are counted twice in the norm", tensor, on<ScalesReduction>(Axis::tensor, 2.0, norm)},
      {"the data-parallel sum is left out", data, on<DropsReduction>(Axis::data, gradients)},
      {"the data-parallel sum is a mean", data, on<ScalesReduction>(Axis::data, 0.5, gradients)},
      {"each rank divides by its own token count", data, on<DropsReduction>(Axis::data, count)},
      {"the loss is one data rank's", data, on<DropsReduction>(Axis::data, norm)},
      {"ZeRO's scattered sum is a mean", zero, plain_on<MeansInReduceScatter>(Axis::data)},
      {"ZeRO's norm is one shard's", zero, on<DropsReduction>(Axis::data, norm)},
      {"ZeRO's weights are not gathered", zero, plain_on<ForgetsGather>(Axis::data)},
      {"the tied gradient is not summed", pipeline, plain_on<DropsTiedSum>(Axis::pipeline)},
      {"boundary gradients are scaled", pipeline, plain_on<ScalesBoundary>(Axis::pipeline)},
      {"the norm is one stage's", pipeline, on<DropsReduction>(Axis::pipeline, norm)},
  };
}

TEST(Mutants, EveryOneIsSeen) {
  for (const Mutant& mutant : mutants()) {
    const auto [error, where] = difference(trace_of(mutant.layout, mutant.decorate), testing::alone(true));
    EXPECT_GT(error, 1e-6) << "not seen: " << mutant.name;
    std::printf("  %-50s %.1e at %s\n", mutant.name, error, where.c_str());
  }
}

// The same harness without a mutant agrees, so what it sees is the mutant.
TEST(Mutants, NoneMeansAgreement) {
  const Decorate nothing = plain_on<Decorator>(Axis::tensor);
  EXPECT_LT(difference(trace_of({.tensor = 2}, nothing), testing::alone(true)).error, 1e-10);
}

}  // namespace
}  // namespace hearth
