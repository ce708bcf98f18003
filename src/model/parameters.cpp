#include "model/parameters.h"

#include <cmath>
#include <cstring>

#include "base/philox.h"

namespace hearth {

namespace {

constexpr double init_std = 0.02;  // GPT-2

// Adds rows to the table in storage order.
class TableBuilder {
 public:
  explicit TableBuilder(const ModelConfig& model) : model_(model) {}

  std::vector<ParamSpec> build() {
    const int64_t c = model_.channels;
    embedding("wte.weight", model_.padded_vocab(), 0);
    back().tied_head = model_.tied;
    add("wpe.weight", {model_.context, c}, -1, Init::normal, init_std);
    back().decay = true;
    back().partial_under_sequence = true;
    for (int64_t l = 0; l < model_.layers; ++l)
      block(l);
    norm("ln_f", model_.layers);
    if (!model_.tied) {
      embedding("lm_head.weight", model_.padded_vocab(), 0);
      back().layer = model_.layers;
      back().hf_name = "lm_head.weight";
    }
    return std::move(table_);
  }

 private:
  ParamSpec& back() { return table_.back(); }

  void add(const std::string& name, const Shape& shape, int64_t layer, Init init, double std = 0.0) {
    ParamSpec spec;
    spec.name = name;
    spec.shape = shape;
    spec.id = table_.size();
    spec.layer = layer;
    spec.init = init;
    spec.init_std = std;
    spec.hf_name = "transformer." + name;
    table_.push_back(spec);
  }

  // [V, C], split by vocabulary.
  void embedding(const std::string& name, int64_t rows, int shard_dim) {
    add(name, {rows, model_.channels}, -1, Init::normal, init_std);
    back().init_rows = model_.vocab;
    back().shard_dim = shard_dim;
    back().decay = true;
  }

  void norm(const std::string& prefix, int64_t layer) {
    add(prefix + ".weight", {model_.channels}, layer, Init::ones);
    back().partial_under_sequence = true;
    if (!model_.bias) return;
    add(prefix + ".bias", {model_.channels}, layer, Init::zeros);
    back().partial_under_sequence = true;
  }

  // [out, in], split by rows: the outputs are sharded.
  void column_parallel(const std::string& prefix, int64_t layer, int64_t out, int64_t in) {
    add(prefix + ".weight", {out, in}, layer, Init::normal, init_std);
    back().shard_dim = 0;
    back().decay = true;
    back().hf_transpose = true;
  }

  void column_bias(const std::string& prefix, int64_t layer, int64_t out) {
    add(prefix + ".bias", {out}, layer, Init::zeros);
    back().shard_dim = 0;
  }

  // [out, in], split by columns: each rank has a partial sum of the outputs, and the bias is added after
  // their reduction.  These write into the residual stream, so their scale falls with depth (GPT-2).
  void row_parallel(const std::string& prefix, int64_t layer, int64_t in) {
    const double depth = 2.0 * static_cast<double>(model_.layers);
    add(prefix + ".weight", {model_.channels, in}, layer, Init::normal, init_std / std::sqrt(depth));
    back().shard_dim = 1;
    back().decay = true;
    back().hf_transpose = true;
    if (!model_.bias) return;
    add(prefix + ".bias", {model_.channels}, layer, Init::zeros);
    back().partial_under_sequence = true;
  }

  // q, k and v are three parameters over one fused buffer; in a Hugging Face file they are thirds of c_attn.
  void qkv(const std::string& h, int64_t layer) {
    const std::string names[3] = {"q", "k", "v"};
    const int64_t kv_rows = model_.key_value_heads() * model_.head_size();
    const int64_t rows[3] = {model_.channels, kv_rows, kv_rows};
    for (int part = 0; part < 3; ++part) {
      column_parallel(h + "attn." + names[part], layer, rows[part], model_.channels);
      fuse(part, h, ".weight");
    }
    if (!model_.bias) return;
    for (int part = 0; part < 3; ++part) {
      column_bias(h + "attn." + names[part], layer, rows[part]);
      fuse(part, h, ".bias");
    }
  }

  void fuse(int part, const std::string& h, const std::string& suffix) {
    back().fused_with_previous = part > 0;
    back().hf_part = part;
    back().hf_name = "transformer." + h + "attn.c_attn" + suffix;
  }

  void block(int64_t l) {
    const std::string h = "h." + std::to_string(l) + ".";
    norm(h + "ln_1", l);
    qkv(h, l);
    row_parallel(h + "attn.proj", l, model_.channels);
    norm(h + "ln_2", l);
    column_parallel(h + "mlp.fc", l, model_.ffn_width(), model_.channels);
    if (model_.bias) column_bias(h + "mlp.fc", l, model_.ffn_width());
    row_parallel(h + "mlp.proj", l, model_.ffn_width());
    for (ParamSpec& spec : table_)
      if (spec.layer == l) spec.hf_name = hugging_face_name(spec.hf_name);
  }

  // attn.proj -> attn.c_proj, mlp.fc -> mlp.c_fc, mlp.proj -> mlp.c_proj
  static std::string hugging_face_name(std::string name) {
    for (const char* ours : {".attn.proj.", ".mlp.fc.", ".mlp.proj."}) {
      const size_t at = name.find(ours);
      if (at != std::string::npos) name.insert(name.find('.', at + 1) + 1, "c_");
    }
    return name;
  }

  const ModelConfig& model_;
  std::vector<ParamSpec> table_;
};

}  // namespace

std::vector<ParamSpec> parameter_table(const ModelConfig& model) {
  return TableBuilder(model).build();
}

int64_t parameter_count(const ModelConfig& model) {
  int64_t count = 0;
  for (const ParamSpec& spec : parameter_table(model)) {
    const int64_t rows = spec.init_rows >= 0 ? spec.init_rows : spec.shape[0];
    count += rows * (spec.shape.rank() > 1 ? spec.shape[1] : 1);
  }
  return count;
}

ParameterSet::ParameterSet(Device& device, std::vector<ParamSpec> specs, Precision precision, Purpose purpose)
    : device_(device), precision_(precision), purpose_(purpose) {
  for (ParamSpec& spec : specs) {
    index_[spec.name] = parameters_.size();
    parameters_.push_back({std::move(spec), {}, {}, {}, {}, {}});
  }
  Regions sizes;
  carve(parameters_, precision, purpose, sizes);
  weights_ = Buffer(device, sizes.weights.used());
  gradients_ = Buffer(device, sizes.gradients.used());
  optimizer_ = Buffer(device, sizes.optimizer.used());
  Regions regions{Carver(weights_.data(), weights_.bytes()), Carver(gradients_.data(), gradients_.bytes()),
                  Carver(optimizer_.data(), optimizer_.bytes())};
  carve(parameters_, precision, purpose, regions);
  if (purpose == Purpose::inference) return;
  for (const Parameter& p : parameters_) {
    const auto flat = [](const Tensor& t) { return t.reshaped({t.elements()}); };
    const Tensor weight = p.weight.data == p.master.data ? Tensor{} : flat(p.weight);
    segments_.push_back({flat(p.master), flat(p.moment1), flat(p.moment2), flat(p.grad), weight, p.spec.decay});
  }
}

MemoryPlan ParameterSet::plan(const std::vector<ParamSpec>& specs, Precision precision, Purpose purpose) {
  std::vector<Parameter> parameters;
  for (const ParamSpec& spec : specs)
    parameters.push_back({spec, {}, {}, {}, {}, {}});
  Regions sizes;
  carve(parameters, precision, purpose, sizes);
  MemoryPlan plan;
  plan.weights = sizes.weights.used();
  plan.gradients = sizes.gradients.used();
  plan.optimizer = sizes.optimizer.used();
  return plan;
}

void ParameterSet::carve(std::vector<Parameter>& parameters, Precision precision, Purpose purpose,
                         Regions& regions) {
  const DType c = compute_dtype(precision);
  const DType m = master_dtype(precision);
  const bool training = purpose == Purpose::training;
  for (Parameter& p : parameters) {
    const auto take = [&p](Carver& region, DType dtype) {
      return p.spec.fused_with_previous ? region.take_adjacent(dtype, p.spec.shape)
                                        : region.take(dtype, p.spec.shape);
    };
    p.weight = take(regions.weights, c);
    if (training) p.grad = take(regions.gradients, m);
    p.master = c == m ? p.weight : regions.optimizer.take(m, p.spec.shape);
    if (training) p.moment1 = regions.optimizer.take(m, p.spec.shape);
    if (training) p.moment2 = regions.optimizer.take(m, p.spec.shape);
  }
}

const Parameter* ParameterSet::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &parameters_[it->second];
}

const Parameter& ParameterSet::at(std::string_view name) const {
  const Parameter* p = find(name);
  check(p != nullptr, "no parameter is called ", name);
  return *p;
}

namespace {

// Values of the elements [begin, begin + out.size()) of a parameter, as functions of their global index.
template <class T>
void initial_values(const ParamSpec& spec, uint64_t seed, int64_t begin, std::span<T> out) {
  const PhiloxKey key = random_key(seed, RandomDomain::init, spec.id);
  const int64_t row = spec.shape.rank() > 1 ? spec.shape[1] : 1;
  const int64_t real = spec.init_rows >= 0 ? spec.init_rows * row : spec.shape.elements();
  std::array<double, 4> z{};
  int64_t block_of_z = -1;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t index = begin + static_cast<int64_t>(i);
    if (spec.init != Init::normal || index >= real) {
      out[i] = spec.init == Init::ones && index < real ? T(1) : T(0);
      continue;
    }
    if (index / 4 != block_of_z) {
      block_of_z = index / 4;
      z = normal4(random_block(key, static_cast<uint64_t>(block_of_z)));
    }
    out[i] = static_cast<T>(spec.init_std * z[index % 4]);
  }
}

template <class T>
void initialize_master(Device& device, const Parameter& p, uint64_t seed) {
  constexpr int64_t chunk = 1 << 20;
  std::vector<T> host(static_cast<size_t>(std::min(chunk, p.master.elements())));
  const Tensor flat = p.master.reshaped({p.master.elements()});
  for (int64_t begin = 0; begin < flat.elements(); begin += chunk) {
    const int64_t count = std::min(chunk, flat.elements() - begin);
    const std::span<T> values(host.data(), static_cast<size_t>(count));
    initial_values(p.spec, seed, begin, values);
    device.copy_in(flat.rows(begin, count), values.data());
    device.synchronize();
  }
}

}  // namespace

void ParameterSet::initialize(uint64_t seed) {
  for (const Parameter& p : parameters_) {
    if (p.master.dtype == DType::f64)
      initialize_master<double>(device_, p, seed);
    else
      initialize_master<float>(device_, p, seed);
    if (p.moment1) device_.ops().fill_zero(p.moment1);
    if (p.moment2) device_.ops().fill_zero(p.moment2);
  }
  round_masters();
  clear_gradients();
}

void ParameterSet::round_masters() {
  for (const Parameter& p : parameters_)
    if (p.weight.data != p.master.data) device_.ops().cast(p.master, p.weight);
}

void ParameterSet::clear_gradients() {
  for (const Parameter& p : parameters_)
    if (p.grad) device_.ops().fill_zero(p.grad);
}

void ParameterSet::gradient_sum_of_squares(const Tensor& total) const {
  for (const Parameter& p : parameters_)
    device_.ops().sum_of_squares(p.grad, total);
}

bool ParameterSet::finite() const {
  const Buffer buffer(device_, sizeof(double));
  const Tensor total(buffer.data(), DType::f64, {1});
  device_.ops().fill_zero(total);
  for (const Parameter& p : parameters_)
    device_.ops().sum(p.master.reshaped({p.master.elements()}), total);
  double sum = 0;
  device_.copy_out(&sum, total);
  return std::isfinite(sum);
}

}  // namespace hearth
