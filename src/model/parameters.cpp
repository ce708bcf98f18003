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

std::vector<ParamSpec> stage_parameters(const ModelConfig& model, int64_t first_layer, int64_t layers) {
  const bool first = first_layer == 0;
  const bool last = first_layer + layers == model.layers;
  std::vector<ParamSpec> specs;
  for (const ParamSpec& spec : parameter_table(model)) {
    const bool block = spec.layer >= first_layer && spec.layer < first_layer + layers;
    const bool embedding = spec.layer < 0 && (first || (last && spec.tied_head));
    const bool output = spec.layer == model.layers && last;
    if (block || embedding || output) specs.push_back(spec);
  }
  return specs;
}

ParameterSet::ParameterSet(Device& device, std::vector<ParamSpec> specs, Precision precision, Purpose purpose,
                           TensorShard shard)
    : device_(device), precision_(precision) {
  for (ParamSpec& spec : specs) {
    index_[spec.name] = parameters_.size();
    const Rectangle local = local_rectangle(spec, shard);
    parameters_.push_back({std::move(spec), local, {}, {}});
  }
  Carver weights, gradients;
  carve(parameters_, precision, purpose, weights, gradients);
  weights_ = Buffer(device, weights.used());
  gradients_ = Buffer(device, gradients.used());
  weights = Carver(weights_.data(), weights_.bytes());
  gradients = Carver(gradients_.data(), gradients_.bytes());
  carve(parameters_, precision, purpose, weights, gradients);
}

std::vector<Parameter> ParameterSet::plan(const std::vector<ParamSpec>& specs, Precision precision,
                                          Purpose purpose, TensorShard shard, MemoryPlan& plan) {
  std::vector<Parameter> parameters;
  for (const ParamSpec& spec : specs)
    parameters.push_back({spec, local_rectangle(spec, shard), {}, {}});
  Carver weights, gradients;
  carve(parameters, precision, purpose, weights, gradients);
  plan.weights += weights.used();
  plan.gradients += gradients.used();
  return parameters;
}

void ParameterSet::carve(std::vector<Parameter>& parameters, Precision precision, Purpose purpose,
                         Carver& weights, Carver& gradients) {
  for (Parameter& p : parameters) {
    const auto take = [&p](Carver& region, DType dtype) {
      return p.spec.fused_with_previous ? region.take_adjacent(dtype, p.local.shape)
                                        : region.take(dtype, p.local.shape);
    };
    p.weight = take(weights, compute_dtype(precision));
    if (purpose == Purpose::training) p.grad = take(gradients, master_dtype(precision));
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

void ParameterSet::clear_gradients() {
  for (const Parameter& p : parameters_)
    if (p.grad) device_.ops().fill_zero(p.grad);
}

namespace {

// Draws from the normal stream of one tensor, by global index.
class NormalStream {
 public:
  explicit NormalStream(PhiloxKey key) : key_(key) {}

  double operator()(int64_t index) {
    if (index / 4 != block_) {
      block_ = index / 4;
      z_ = normal4(random_block(key_, static_cast<uint64_t>(block_)));
    }
    return z_[static_cast<size_t>(index % 4)];
  }

 private:
  PhiloxKey key_;
  int64_t block_ = -1;
  std::array<double, 4> z_{};
};

int64_t columns_of(const Shape& shape) {
  return shape.rank() > 1 ? shape[1] : 1;
}

// Rows [first, first + count) of the local part, row-major.
template <class T>
void initial_rows(const Parameter& p, uint64_t seed, int64_t first, int64_t count, std::vector<T>& out) {
  const ParamSpec& spec = p.spec;
  NormalStream normal(random_key(seed, RandomDomain::init, spec.id));
  const int64_t columns = columns_of(p.local.shape);
  const int64_t first_column = spec.shape.rank() > 1 ? p.local.start[1] : 0;
  out.resize(static_cast<size_t>(count * columns));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = p.local.start[0] + first + i;
    const bool padding = spec.init_rows >= 0 && row >= spec.init_rows;
    for (int64_t c = 0; c < columns; ++c) {
      double value = 0;
      if (!padding && spec.init == Init::ones) value = 1;
      if (!padding && spec.init == Init::normal)
        value = spec.init_std * normal(row * columns_of(spec.shape) + first_column + c);
      out[static_cast<size_t>(i * columns + c)] = static_cast<T>(value);
    }
  }
}

// In pieces of bounded size, through host memory.
template <class T>
void initialize_in_pieces(Device& device, const Parameter& p, uint64_t seed, int64_t first_row,
                          const Tensor& values) {
  const int64_t rows_at_once = std::max<int64_t>(1, (1 << 20) / columns_of(p.local.shape));
  std::vector<T> host;
  for (int64_t begin = 0; begin < values.dim(0); begin += rows_at_once) {
    const int64_t count = std::min(rows_at_once, values.dim(0) - begin);
    initial_rows(p, seed, first_row + begin, count, host);
    device.copy_in(values.rows(begin, count), host.data());
  }
}

}  // namespace

void write_initial_values(Device& device, const Parameter& parameter, uint64_t seed, int64_t first_row,
                          const Tensor& values) {
  if (values.dtype == DType::f64)
    initialize_in_pieces<double>(device, parameter, seed, first_row, values);
  else
    initialize_in_pieces<float>(device, parameter, seed, first_row, values);
}

}  // namespace hearth
