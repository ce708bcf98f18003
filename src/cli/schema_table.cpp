// The table itself.  One row a key: name, field, allowed values, help (with the unit).
#include <limits>

#include "cli/schema.h"

namespace hearth {
namespace {

constexpr int64_t million = 1'000'000;
constexpr int64_t billion = 1'000'000'000;
constexpr int64_t most = std::numeric_limits<int64_t>::max();

using S = Settings&;

std::vector<Key> model_keys() {
  std::vector<std::string> presets = {""};
  for (const std::string& name : model_preset_names())
    presets.push_back(name);
  return {
      {"model.preset", [](S s) -> Field { return &s.preset; }, Choices{presets},
       "shape to start from; the other keys of [model] override it, wherever they stand"},
      {"model.layers", [](S s) -> Field { return &s.run.model.layers; }, Whole{1, 10000},
       "transformer blocks"},
      {"model.heads", [](S s) -> Field { return &s.run.model.heads; }, Whole{1, 10000},
       "attention heads; channels / heads, the head size, must be a multiple of 8 up to 128"},
      {"model.kv_heads", [](S s) -> Field { return &s.run.model.kv_heads; }, Whole{0, 10000},
       "heads of keys and values, a divisor of heads; 0 = heads"},
      {"model.channels", [](S s) -> Field { return &s.run.model.channels; }, Whole{1, 1 << 20},
       "width of the residual stream"},
      {"model.ffn", [](S s) -> Field { return &s.run.model.ffn; }, Whole{0, 1 << 24},
       "hidden width of the MLP; 0 = 4 * channels"},
      {"model.context", [](S s) -> Field { return &s.run.model.context; }, Whole{1, 1 << 24},
       "tokens in a sequence"},
      {"model.vocab", [](S s) -> Field { return &s.run.model.vocab; }, Whole{0, 1 << 24},
       "tokens in the vocabulary; 0 = taken from the tokenizer of the data"},
      {"model.dropout", [](S s) -> Field { return &s.run.model.dropout; },
       Real{.low = 0, .high = 1, .without_high = true},
       "probability at the embedding, the attention projection and the MLP output (none on attention "
       "probabilities)"},
      {"model.bias", [](S s) -> Field { return &s.run.model.bias; }, Anything{},
       "biases in linear layers and layernorms"},
      {"model.tied", [](S s) -> Field { return &s.run.model.tied; }, Anything{},
       "the LM head shares the token embedding"},
      {"model.norm", [](S s) -> Field { return &s.run.model.norm; }, Choices{{"layernorm", "rmsnorm"}},
       "normalisation (rmsnorm is not built yet)"},
      {"model.activation", [](S s) -> Field { return &s.run.model.activation; }, Choices{{"gelu", "swiglu"}},
       "non-linearity of the MLP; gelu is the tanh form (swiglu is not built yet)"},
      {"model.position", [](S s) -> Field { return &s.run.model.position; }, Choices{{"learned", "rope"}},
       "position encoding (rope is not built yet)"},
  };
}

std::vector<Key> data_keys() {
  return {
      {"data.train", [](S s) -> Field { return &s.run.data.train; }, Anything{},
       "training data: plain text files, token shards or globs of them, separated by commas; must be given"},
      {"data.val", [](S s) -> Field { return &s.run.data.val; }, Anything{},
       "validation data, in the same form; \"\" = the last val_fraction of the training data"},
      {"data.val_fraction", [](S s) -> Field { return &s.run.data.val_fraction; },
       Real{.low = 0, .high = 1, .without_high = true},
       "part of the training data that is held out when data.val is not given"},
      {"data.tokenizer", [](S s) -> Field { return &s.run.data.tokenizer; }, Anything{},
       "byte, char, gpt2, or the path of a tokenizer file; auto = the tokenizer.json beside the shards"},
  };
}

std::vector<Key> train_keys() {
  return {
      {"train.steps", [](S s) -> Field { return &s.run.train.steps; }, Whole{0, billion},
       "optimizer steps of the whole run"},
      {"train.stop_after", [](S s) -> Field { return &s.run.train.stop_after; }, Whole{0, billion},
       "steps of this process, then save and exit with code 75; 0 = no limit"},
      {"train.max_minutes", [](S s) -> Field { return &s.run.train.max_minutes; },
       Real{.low = 0, .high = 1e9}, "minutes of this process, then save and exit with code 75; 0 = no limit"},
      {"train.batch", [](S s) -> Field { return &s.run.train.batch; }, Whole{1, 1 << 24},
       "sequences per optimizer step"},
      {"train.micro_batch", [](S s) -> Field { return &s.run.train.micro_batch; }, Whole{0, 1 << 24},
       "sequences per forward pass, a divisor of batch; 0 = the whole batch"},
      {"train.seed", [](S s) -> Field { return &s.run.train.seed; }, Whole{0, most},
       "seed of the initial weights, the dropout and the order of the data"},
      {"train.precision", [](S s) -> Field { return &s.run.train.precision; },
       Choices{{"fp32", "bf16", "fp64"}},
       "bf16 = mixed precision with fp32 master weights; fp64 only on the reference device"},
      {"train.recompute", [](S s) -> Field { return &s.run.train.recompute; },
       Choices{{"none", "selective", "block"}},
       "what backward computes again to save memory: nothing, layernorm and GELU outputs, or whole blocks"},
      {"train.max_skipped", [](S s) -> Field { return &s.run.train.max_skipped; }, Whole{1, million},
       "non-finite steps in a row that are skipped before the run stops with exit code 70"},
  };
}

std::vector<Key> optimizer_keys() {
  return {
      {"optimizer.lr", [](S s) -> Field { return &s.run.optimizer.lr; }, Real{.low = 0, .high = 1000},
       "highest learning rate, reached after the warm-up"},
      {"optimizer.min_lr", [](S s) -> Field { return &s.run.optimizer.min_lr; }, Real{.low = 0, .high = 1000},
       "learning rate at the end of the decay (linear, cosine, wsd); at most lr"},
      {"optimizer.warmup", [](S s) -> Field { return &s.run.optimizer.warmup; }, Whole{0, billion},
       "steps of linear warm-up from 0; may be longer than the run"},
      {"optimizer.schedule", [](S s) -> Field { return &s.run.optimizer.schedule; },
       Choices{{"constant", "linear", "cosine", "wsd"}},
       "shape of the decay; wsd = warm-up, stable, decay at the end"},
      {"optimizer.decay_steps", [](S s) -> Field { return &s.run.optimizer.decay_steps; }, Whole{0, billion},
       "step at which the decay ends (linear, cosine), 0 = train.steps; for wsd the length in steps of the "
       "final decay"},
      {"optimizer.beta1", [](S s) -> Field { return &s.run.optimizer.beta1; },
       Real{.low = 0, .high = 1, .without_high = true}, "AdamW: decay of the first moment"},
      {"optimizer.beta2", [](S s) -> Field { return &s.run.optimizer.beta2; },
       Real{.low = 0, .high = 1, .without_high = true}, "AdamW: decay of the second moment"},
      {"optimizer.eps", [](S s) -> Field { return &s.run.optimizer.eps; },
       Real{.low = 0, .high = 1, .without_low = true}, "AdamW: added to the root of the second moment"},
      {"optimizer.weight_decay", [](S s) -> Field { return &s.run.optimizer.weight_decay; },
       Real{.low = 0, .high = 1000}, "AdamW: decoupled decay of matrices and embeddings"},
      {"optimizer.clip", [](S s) -> Field { return &s.run.optimizer.clip; }, Real{.low = 0, .high = 1e9},
       "largest norm of the whole gradient; 0 = no clipping"},
  };
}

std::vector<Key> parallel_keys() {
  return {
      {"parallel.data", [](S s) -> Field { return &s.run.parallel.data; }, Whole{-1, million},
       "data-parallel ranks; -1 = what the other axes leave"},
      {"parallel.tensor", [](S s) -> Field { return &s.run.parallel.tensor; }, Whole{1, million},
       "tensor-parallel ranks"},
      {"parallel.pipeline", [](S s) -> Field { return &s.run.parallel.pipeline; }, Whole{1, million},
       "pipeline stages"},
      {"parallel.sequence", [](S s) -> Field { return &s.run.parallel.sequence; }, Anything{},
       "sequence parallelism: each tensor-parallel rank keeps its part of the rows between the regions"},
      {"parallel.zero", [](S s) -> Field { return &s.run.parallel.zero; }, Whole{0, 1},
       "1 = optimizer state sharded over the data-parallel ranks (ZeRO-1)"},
      {"parallel.schedule", [](S s) -> Field { return &s.run.parallel.schedule; },
       Choices{{"gpipe", "1f1b", "interleaved"}}, "order of the microbatches in the pipeline"},
      {"parallel.virtual", [](S s) -> Field { return &s.run.parallel.virtual_stages; }, Whole{1, 10000},
       "model chunks per pipeline stage, for schedule interleaved"},
      {"parallel.transport", [](S s) -> Field { return &s.run.parallel.transport; },
       Choices{{"auto", "nccl", "gloo"}},
       "library that moves tensors between ranks; auto = nccl where every rank has a GPU of its own and NCCL "
       "is "
       "installed, else gloo"},
      {"parallel.timeout", [](S s) -> Field { return &s.run.parallel.timeout; },
       Real{.low = 0, .high = 1e9, .without_low = true},
       "seconds without progress after which a peer is taken for dead"},
      {"parallel.init_timeout", [](S s) -> Field { return &s.run.parallel.init_timeout; },
       Real{.low = 0, .high = 1e9, .without_low = true},
       "seconds for all ranks to come together at the start"},
      {"parallel.check_every", [](S s) -> Field { return &s.run.parallel.check_every; }, Whole{0, billion},
       "steps between comparisons of the copies of weights that ranks hold, also after the last step; 0 = "
       "never"},
  };
}

std::vector<Key> device_keys() {
  return {
      {"device.kind", [](S s) -> Field { return &s.run.device.kind; },
       Choices{{"auto", "cuda", "cpu", "reference"}},
       "auto = a usable GPU, else the CPU; reference = slow plain loops, the oracle of the tests"},
      {"device.gemm", [](S s) -> Field { return &s.run.device.gemm; }, Choices{{"native", "cublaslt"}},
       "matrix multiplication on CUDA devices; cublaslt needs NVIDIA's library at run time, and with it "
       "recompute = \"selective\" changes the last bits of a run"},
      {"device.threads", [](S s) -> Field { return &s.run.device.threads; }, Whole{0, 4096},
       "CPU threads; 0 = all cores this process may use"},
  };
}

std::vector<Key> reporting_keys() {
  return {
      {"eval.every", [](S s) -> Field { return &s.run.eval.every; }, Whole{0, billion},
       "steps between evaluations, also after the last step; 0 = never"},
      {"eval.tokens", [](S s) -> Field { return &s.run.eval.tokens; }, Whole{0, most},
       "tokens at the start of the validation data that are evaluated; 0 = all of it"},
      {"sample.every", [](S s) -> Field { return &s.run.sample.every; }, Whole{0, billion},
       "steps between text samples; 0 = never"},
      {"sample.prompt", [](S s) -> Field { return &s.run.sample.prompt; }, Anything{},
       "text that the samples continue"},
      {"sample.tokens", [](S s) -> Field { return &s.run.sample.tokens; }, Whole{0, million},
       "tokens of each sample"},
      {"checkpoint.every", [](S s) -> Field { return &s.run.checkpoint.every; }, Whole{0, billion},
       "steps between checkpoints; 0 = only at the end and when the run is stopped"},
      {"checkpoint.keep", [](S s) -> Field { return &s.run.checkpoint.keep; }, Whole{1, million},
       "newest checkpoints that are kept; the one with the best validation loss is kept besides"},
      {"checkpoint.resume", [](S s) -> Field { return &s.run.checkpoint.resume; }, Anything{},
       "auto = the newest valid checkpoint of the run directory, else from scratch; none = from scratch, a "
       "used "
       "run directory is refused; or the path of a checkpoint"},
      {"checkpoint.allow_data_change", [](S s) -> Field { return &s.run.checkpoint.allow_data_change; },
       Anything{}, "resume although the data is not what the checkpoint was trained on"},
      {"log.every", [](S s) -> Field { return &s.run.log.every; }, Whole{1, billion},
       "steps between lines on the console (metrics.jsonl has every step)"},
      {"log.tensorboard", [](S s) -> Field { return &s.run.log.tensorboard; }, Anything{},
       "write TensorBoard events into the run directory"},
      {"run.dir", [](S s) -> Field { return &s.run.run.dir; }, Anything{}, "run directory; \"\" = runs/NAME"},
      {"run.name", [](S s) -> Field { return &s.run.run.name; }, Anything{},
       "name of the run; \"\" = the name of the configuration file"},
      {"debug.dump_gradients", [](S s) -> Field { return &s.run.debug.dump_gradients; }, Anything{},
       "folder into which every gradient of each step is written as safetensors; \"\" = off"},
  };
}

std::vector<Key> all_keys() {
  std::vector<Key> table;
  for (const auto part :
       {model_keys, data_keys, train_keys, optimizer_keys, parallel_keys, device_keys, reporting_keys})
    for (Key& key : part())
      table.push_back(std::move(key));
  return table;
}

}  // namespace

const std::vector<Key>& schema() {
  static const std::vector<Key> table = all_keys();
  return table;
}

const std::vector<Section>& schema_sections() {
  static const std::vector<Section> sections = {
      {"model", "the shape of the GPT"},
      {"data", "what it learns from"},
      {"train", "length, batch and precision of the run"},
      {"optimizer", "AdamW and its learning rate"},
      {"parallel", "how the run is spread over devices"},
      {"device", "what it runs on"},
      {"eval", "validation loss during the run"},
      {"sample", "text samples during the run"},
      {"checkpoint", "saving and resuming"},
      {"log", "console and TensorBoard"},
      {"run", "where the run lives"},
      {"debug", "for comparisons between implementations"},
  };
  return sections;
}

}  // namespace hearth
