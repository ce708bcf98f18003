#include "cli/config_check.h"

#include <string>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "cli/literal.h"
#include "model/sharding.h"

namespace hearth {
namespace {

void validate_data(const RunConfig& c) {
  if (c.data.train.empty())
    fail_usage("data.train is not given; name a text file or token shards, as in --data.train=data/tiny.txt");
  if (c.data.tokenizer.empty())
    fail_usage("data.tokenizer = \"\", expected auto, byte, char, gpt2 or the path of a tokenizer file");
  if (c.data.val.empty() && c.data.val_fraction == 0)
    fail_usage("data.val_fraction = 0 leaves no validation data; give data.val, or a fraction such as 0.1");
}

// The divisors of `batch` on both sides of `micro_batch`; batch and 1 are always there.
std::string neighbouring_divisors(int64_t batch, int64_t micro_batch) {
  int64_t below = micro_batch;
  while (batch % below != 0)
    --below;
  int64_t above = micro_batch;
  while (batch % above != 0)
    ++above;
  return text(below, " and ", above);
}

void validate_batch(const TrainConfig& t) {
  if (t.micro_batch == 0) return;
  if (t.micro_batch > t.batch)
    fail_usage("train.micro_batch = ", t.micro_batch, " is larger than train.batch = ", t.batch,
               "; the largest that fits is ", t.batch);
  const int64_t rest = t.batch % t.micro_batch;
  if (rest == 0) return;
  const int64_t lower = t.batch - rest;
  fail_usage("train.batch = ", t.batch, " is not a multiple of train.micro_batch = ", t.micro_batch, ": ",
             t.batch, " = ", t.batch / t.micro_batch, " x ", t.micro_batch, " + ", rest,
             "; the nearest batches that are: ", lower, " and ", lower + t.micro_batch,
             "; the nearest micro_batches that divide ", t.batch, ": ",
             neighbouring_divisors(t.batch, t.micro_batch));
}

// Samples and tokens are counted in 64 bits.
void validate_length(const RunConfig& c) {
  const double tokens = static_cast<double>(c.train.steps) * static_cast<double>(c.train.batch) *
                        static_cast<double>(c.model.context);
  if (tokens > 4e18)
    fail_usage("train.steps x train.batch x model.context = ", c.train.steps, " x ", c.train.batch, " x ",
               c.model.context, " tokens is more than can be counted (4e18)");
}

void validate_optimizer(const OptimizerConfig& o) {
  const bool decays = o.schedule != LrSchedule::constant;
  if (decays && o.min_lr > o.lr)
    fail_usage("optimizer.min_lr = ", number_literal(o.min_lr),
               " is larger than optimizer.lr = ", number_literal(o.lr),
               "; the learning rate falls from lr to min_lr");
}

// Any microbatch must split, also the shorter one at the end of an evaluation: so one sample must.
void validate_sequence(const RunConfig& c) {
  const int64_t tensor = c.parallel.tensor, context = c.model.context;
  if (!c.parallel.sequence) return;
  if (tensor == 1)
    fail_usage(
        "parallel.sequence = true with parallel.tensor = 1: there are no tensor-parallel ranks to split ",
        "the tokens over; set parallel.tensor to 2 or more, or parallel.sequence = false");
  if (context % tensor == 0) return;
  const int64_t lower = context / tensor * tensor;
  fail_usage("parallel.sequence = true: model.context = ", context, " tokens do not split over ", tensor,
             " tensor-parallel ranks: ", context, " = ", tensor, " x ", context / tensor, " + ",
             context - lower, "; the nearest that do: ", lower > 0 ? text(lower, " and ") : std::string(),
             lower + tensor);
}

void validate_parallel(const RunConfig& c) {
  const ParallelConfig& p = c.parallel;
  if (p.data == 0)
    fail_usage("parallel.data = 0, expected a positive number, or -1 for what the other axes leave");
  if (p.transport == "nccl" && (c.device.kind == "cpu" || c.device.kind == "reference"))
    fail_usage("parallel.transport = \"nccl\" moves tensors between GPUs, but device.kind = \"",
               c.device.kind, "\"; use \"gloo\" or \"auto\"");
  validate_tensor_parallel(c.model, p.tensor);
  validate_sequence(c);
  const int64_t parts = p.pipeline * p.virtual_stages;
  if (parts > c.model.layers)
    fail_usage("parallel.pipeline = ", p.pipeline, " x parallel.virtual = ", p.virtual_stages, " = ", parts,
               " parts for model.layers = ", c.model.layers,
               "; every part needs a layer: at most pipeline = ",
               std::max<int64_t>(1, c.model.layers / p.virtual_stages),
               " with this virtual, or virtual = ", std::max<int64_t>(1, c.model.layers / p.pipeline),
               " with this pipeline");
  const bool interleaved = p.schedule == "interleaved";
  if (interleaved != (p.virtual_stages > 1))
    fail_usage("parallel.schedule = \"", p.schedule, "\" with parallel.virtual = ", p.virtual_stages,
               interleaved ? "; interleaving needs at least 2 virtual stages"
                           : "; more than one virtual stage needs parallel.schedule = \"interleaved\"");
}

void validate_precision(const RunConfig& c) {
  if (c.train.precision == Precision::fp64 && c.device.kind != "reference")
    fail_usage("train.precision = \"fp64\" works only with device.kind = \"reference\", not \"",
               c.device.kind, "\"; use fp32 or bf16, or the reference device");
}

void validate_resume(const std::string& resume) {
  if (resume == "auto" || resume == "none") return;
  if (!resume.empty() && fs::exists(resume)) return;
  const std::string close = nearest(resume, {"auto", "none"});
  fail_usage("checkpoint.resume = ", quoted(resume), ", expected auto, none, or the path of a checkpoint",
             resume.empty()  ? ""
             : close.empty() ? "; there is no such path"
                             : text("; did you mean ", close, "?"));
}

void validate_run(const RunInfo& run) {
  const bool folder = run.name.find('/') != std::string::npos || run.name == "." || run.name == "..";
  if (folder)
    fail_usage("run.name = ", quoted(run.name), ", expected a name without folders; the place is run.dir");
}

}  // namespace

void validate(const RunConfig& config) {
  validate(config.model);
  validate_data(config);
  validate_batch(config.train);
  validate_length(config);
  validate_optimizer(config.optimizer);
  validate_parallel(config);
  validate_precision(config);
  validate_resume(config.checkpoint.resume);
  validate_run(config.run);
}

}  // namespace hearth
