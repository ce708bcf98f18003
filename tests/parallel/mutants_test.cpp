// Broken parallel trainings: each mutant leaves out, doubles or misplaces one thing that layouts need, from
// outside of the code under test, and the comparison with one process must see it.
#include <gtest/gtest.h>

#include <cstring>

#include "device/reference/reference_ops.h"
#include "parallel/layout_trace.h"
#include "support/decorator.h"

namespace hearth {
namespace {

using testing::Decorator;

template <class T>
void scale_as(const Tensor& t, double factor) {
  for (int64_t i = 0; i < t.elements(); ++i)
    static_cast<T*>(t.data)[i] = static_cast<T>(static_cast<double>(static_cast<T*>(t.data)[i]) * factor);
}
void scale(const Tensor& t, double factor) {
  t.dtype == DType::f64 ? scale_as<double>(t, factor) : scale_as<float>(t, factor);
}

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

// The parts of a gathered tensor stand one place further.
class RotatesGather : public Decorator {
 public:
  using Decorator::Decorator;
  Request all_gather(const Tensor& in, const Tensor& out) override {
    inner_->all_gather(in, out).wait();
    auto* data = static_cast<std::byte*>(out.data);
    std::rotate(data, data + in.bytes(), data + out.bytes());
    return {};
  }
};

// ---- broken operations, on the reference device

// The bias of a row-parallel linear comes twice, as if both ranks had added it.
struct AddsBiasTwice : reference::ReferenceOps {
  void residual_norm_forward(const ResidualNorm& p) override {
    if (p.branch && p.branch_bias) {
      const int64_t channels = p.branch.dim(1);
      for (int64_t i = 0; i < p.branch.elements(); ++i)
        p.branch.as<double>()[i] += p.branch_bias.as<double>()[i % channels];
    }
    ReferenceOps::residual_norm_forward(p);
  }
};

// In the norm, tensors of which each of two ranks has a copy count twice.
struct CountsCopies : reference::ReferenceOps {
  void sum_of_squares(const Tensor& x, const Tensor& total) override {
    const bool replicated = x.shape == Shape{64} || x.shape == Shape{16, 64};
    for (int copy = 0; copy < (replicated ? 2 : 1); ++copy)
      ReferenceOps::sum_of_squares(x, total);
  }
};

// Every rank's rows get the mask of the first rank's.
struct MasksFirstRows : reference::ReferenceOps {
  void residual_norm_forward(const ResidualNorm& p) override {
    ResidualNorm first = p;
    first.dropout.first_row = 0;
    ReferenceOps::residual_norm_forward(first);
  }
  void residual_norm_backward(const ResidualNormBackward& p) override {
    ResidualNormBackward first = p;
    first.dropout.first_row = 0;
    ReferenceOps::residual_norm_backward(first);
  }
};

template <class Mutant>
class MutantDevice : public testing::DeviceDecorator {
 public:
  Ops& ops() override { return ops_; }

 private:
  Mutant ops_;
};

template <class Mutant>
Alterations operations() {
  return {.decorate = {}, .device = [] { return std::make_unique<MutantDevice<Mutant>>(); }};
}

// ---- altered tables

Alterations tables(std::function<void(const Grid&, StepTables&)> alter) {
  Alterations alterations;
  alterations.tables = std::move(alter);
  return alterations;
}

// `change` for each parameter whose name contains `part`.
Alterations parameters(const std::string& part, std::function<void(ParamSpec&)> change) {
  return tables([=](const Grid&, StepTables& t) {
    for (ParamSpec& spec : t.parameters)
      if (spec.name.find(part) != std::string::npos) change(spec);
  });
}

// `change` for each action of each stage.
Alterations actions(std::function<void(int, Action&)> change) {
  return tables([=](const Grid&, StepTables& t) {
    for (size_t stage = 0; stage < t.schedule.actions.size(); ++stage)
      for (Action& action : t.schedule.actions[stage])
        change(static_cast<int>(stage), action);
  });
}

// Every stage begins the random streams of its tensors anew.
void restart_streams(const Grid&, StepTables& t) {
  const uint64_t first = t.parameters.front().id;
  for (ParamSpec& spec : t.parameters)
    spec.id -= first;
}

// Decay is known only where the embeddings are.
void forget_decay(const Grid& grid, StepTables& t) {
  for (ParamSpec& spec : t.parameters)
    spec.decay = spec.decay && grid.first(Axis::pipeline);
}

// Microbatches 0 and 1 change places in the backward passes of the first stage, and there alone.
void swap_backwards(int stage, Action& action) {
  if (stage == 0 && action.kind == Action::Kind::backward && action.microbatch < 2)
    action.microbatch = 1 - action.microbatch;
}

// Microbatch 0 is computed twice, and 1 not at all.
void repeat_first(int, Action& action) {
  if (action.microbatch == 1) action.microbatch = 0;
}

// The sums over the data axis begin in the first backward pass.
void reduce_early(int, Action& action) {
  action.last_backward = action.kind == Action::Kind::backward && action.microbatch == 0;
}

// ---- the list

template <class Mutant, class... Arguments>
Alterations on(Axis where, Arguments... arguments) {
  return {.decorate = [=](Axis axis, std::unique_ptr<Communicator> c) -> std::unique_ptr<Communicator> {
    if (axis != where) return c;
    return std::make_unique<Mutant>(std::move(c), arguments...);
  }};
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
  Alterations alterations;
};

std::vector<Mutant> mutants() {
  const Layout tensor{.tensor = 2}, data{.data = 2}, zero{.data = 2, .zero = 1}, pipeline{.pipeline = 2};
  const Layout sequence{.tensor = 2, .sequence = true}, gpipe{.pipeline = 2, .schedule = "gpipe"};
  const auto whole = [](ParamSpec& spec) { spec.partial_under_sequence = false; };
  const auto partial = [](ParamSpec& spec) { spec.partial_under_sequence = true; };
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
      {"ZeRO's scattered sum is a mean", zero, on<MeansInReduceScatter>(Axis::data)},
      {"ZeRO's norm is one shard's", zero, on<DropsReduction>(Axis::data, norm)},
      {"ZeRO's weights are not gathered", zero, on<ForgetsGather>(Axis::data)},
      {"the tied gradient is not summed", pipeline, on<DropsTiedSum>(Axis::pipeline)},
      {"boundary gradients are scaled", pipeline, on<ScalesBoundary>(Axis::pipeline)},
      {"the norm is one stage's", pipeline, on<DropsReduction>(Axis::pipeline, norm)},
      {"the token count is doubled", data, on<ScalesReduction>(Axis::data, 2.0, count)},

      {"row-parallel biases are added on every rank", tensor, operations<AddsBiasTwice>()},
      {"copies are counted twice, other tensors are not", tensor, operations<CountsCopies>()},
      {"the same with sequence parallelism", sequence, operations<CountsCopies>()},

      {"norms, biases and positions are not summed", sequence, on<DropsReduction>(Axis::tensor, gradients)},
      {"norms, biases and positions are averaged", sequence,
       on<ScalesReduction>(Axis::tensor, 0.5, gradients)},
      {"the rows' sums are averaged", sequence, on<MeansInReduceScatter>(Axis::tensor)},
      {"gathered rows are rotated", sequence, on<RotatesGather>(Axis::tensor)},
      {"each rank masks with the first rank's rows", sequence, operations<MasksFirstRows>()},

      {"the final norm is taken for whole", sequence, parameters("ln_f", whole)},
      {"norm biases are taken for whole", sequence, parameters("ln_1.bias", whole)},
      {"row-parallel biases are taken for whole", sequence, parameters("mlp.proj.bias", whole)},
      {"positions are taken for whole", sequence, parameters("wpe", whole)},
      {"a sharded matrix is taken for partial", sequence, parameters("mlp.fc.weight", partial)},
      {"a column-parallel bias is taken for partial", sequence, parameters("attn.q.bias", partial)},
      {"stages restart the random streams", {.pipeline = 2, .tied = false}, tables(restart_streams)},
      {"the second stage decays nothing", pipeline, tables(forget_decay)},

      {"backwards are swapped on one stage", gpipe, actions(swap_backwards)},
      {"a microbatch is computed twice instead of the next", data, actions(repeat_first)},
      {"gradients are reduced before the last microbatch", data, actions(reduce_early)},
  };
}

TEST(Mutants, EveryOneIsSeen) {
  for (const Mutant& mutant : mutants()) {
    const auto [error, where] =
        difference(trace_of(mutant.layout, mutant.alterations), testing::alone(mutant.layout));
    EXPECT_GT(error, 1e-6) << "not seen: " << mutant.name;
    std::printf("  %-50s %.1e at %s\n", mutant.name, error, where.c_str());
  }
}

// The same harness without a mutant agrees, so what it sees is the mutant.
TEST(Mutants, NoneMeansAgreement) {
  const Alterations nothing = on<Decorator>(Axis::tensor);
  EXPECT_LT(difference(trace_of({.tensor = 2}, nothing), testing::alone()).error, 1e-10);
}

}  // namespace
}  // namespace hearth
