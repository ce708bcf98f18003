// The trainer loop: prepare everything, then step, evaluate, sample, save, until the end or a stop.
//
// Order of start-up: configuration, data, device and resume source are checked first; only then is the run
// directory created.  Order within the loop: step, metrics, evaluation, sample, checkpoint; an evaluation
// that fails or is stopped never costs the weights.
#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "base/text.h"
#include "base/version.h"
#include "model/sharding.h"
#include "parallel/world.h"
#include "train/log.h"
#include "train/lr_schedule.h"
#include "train/memory_fit.h"
#include "train/report.h"
#include "train/resume.h"
#include "train/run_directory.h"
#include "train/run_sampler.h"
#include "train/step.h"
#include "train/stop.h"

namespace hearth {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

std::string scientific(double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.2e", value);
  return buffer;
}

class Trainer {
 public:
  Trainer(const RunConfig& config, const ConfigValues& values, std::string config_toml,
          std::string resume_command)
      : config_(config),
        values_(values),
        config_toml_(std::move(config_toml)),
        resume_command_(std::move(resume_command)) {}

  ExitCode run();

 private:
  ExitCode run_in_world();
  // Start-up, in order.
  void meet();
  void open_data();
  void open_device();
  void find_start();
  void open_run();
  void build();
  std::string start_sentence() const;

  // The loop and its parts.
  ExitCode loop();
  void step();
  void after_step();
  void compare_replicas();
  void evaluate_now();
  void sample_now();
  void save();
  void save_or_go_on();
  CheckpointTeam team();
  StopWish wish() const;
  std::optional<ExitCode> stop_reason();
  ExitCode finish(ExitCode code, const std::string& why);
  ExitCode stop_numerical();

  void record(const JsonLine& line);
  void log_step(const StepMetrics& m);
  void dump_gradients();
  // Of this rank, per step.
  int64_t microbatches() const {
    return config_.train.batch / (micro_batch_of(config_.train) * world_->grid().size(Axis::data));
  }
  bool due(int64_t every) const { return every > 0 && (state_.step % every == 0 || at_end()); }
  bool at_end() const { return state_.step >= config_.train.steps; }

  RunConfig config_;
  ConfigValues values_;
  const std::string config_toml_, resume_command_;
  const Clock::time_point started_ = Clock::now();

  std::unique_ptr<Device> device_;  // outlives the communicators
  std::unique_ptr<World> world_;
  std::optional<Corpus> corpus_;
  std::optional<CheckpointReader> source_;
  bool continues_ = false;  // the source is this run directory's own newest checkpoint
  Log log_;
  std::unique_ptr<RunDirectory> directory_;
  std::unique_ptr<LineFile> metrics_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<RunSampler> sampler_;
  std::unique_ptr<Loader> loader_;

  StopWish agreed_stop_ = StopWish::none;  // of all ranks, in the last step or evaluation
  CheckpointState state_;
  int64_t first_step_ = 0;     // steps done before this process
  int64_t saved_step_ = -1;    // step of the newest checkpoint
  int64_t compared_step_ = 0;  // after which all copies of weights were equal
  bool metrics_failure_reported_ = false;
  double train_seconds_ = 0;
  double smoothed_ms_ = 0;
};

// ---- start-up

void Trainer::meet() {
  WorldOptions options;
  options.tensor = config_.parallel.tensor;
  options.data = config_.parallel.data;
  options.pipeline = config_.parallel.pipeline;
  options.timeout_seconds = config_.parallel.timeout;
  options.init_timeout_seconds = config_.parallel.init_timeout;
  options.build = hearth_version;
  options.config = sha256_hex(config_toml_);
  options.log = [this](const std::string& line) { log_.line(line); };
  options.while_waiting = [] {
    if (const int signal = stop_signal())
      throw Error(exit_code_for(signal), "asked to stop before all ranks had come; nothing was trained");
  };
  world_ = std::make_unique<World>(options);
  if (!world_->leader()) log_.silence();
  settle_micro_batch(config_.train, world_->grid().size(Axis::data));
}

void Trainer::open_data() {
  corpus_.emplace(open_corpus(config_.data, config_.model.context, config_.model.vocab));
  if (config_.model.vocab == 0) {
    config_.model.vocab = corpus_->vocab;
    values_["model.vocab"] = std::to_string(corpus_->vocab);
  }
  if (config_.model.vocab == 0)
    fail_usage("model.vocab is 0 and the data has no tokenizer to take it from; set model.vocab");
  validate(config_.model);
  validate_tensor_parallel(config_.model, config_.parallel.tensor);
}

void Trainer::open_device() {
  config_.device.local_rank = world_->local_rank();
  device_ = make_device(config_.device);
  if (const auto why = device_->unsupported(config_.train.precision))
    fail_usage("train.precision = \"", name_of(config_.train.precision), "\" on device ", device_->kind(),
               ": ", *why);
  require_supported(*device_, config_.model, config_.parallel.tensor);
  world_->connect(*device_, config_.parallel.transport);
}

// Rank 0 looks; the others open what it found.
void Trainer::find_start() {
  const auto report = [this](const std::string& sentence) { log_.line("warning: " + sentence); };
  if (world_->leader())
    if (auto found = find_resume_source(config_, config_.run.dir, report)) source_.emplace(std::move(*found));
  const std::string path = world_->broadcast(source_ ? source_->path().string() : "");
  if (path.empty()) return;
  if (!source_) source_.emplace(fs::path(path));
  const std::string tokenizer = corpus_->tokenizer ? corpus_->tokenizer->fingerprint() : "";
  for (const std::string& note :
       compare_with_checkpoint(*source_, config_, values_, corpus_->train.fingerprint(), tokenizer))
    log_.line("note: " + note);
  state_ = source_->state();
  first_step_ = compared_step_ = state_.step;
  continues_ = fs::weakly_canonical(source_->path()).parent_path() ==
               fs::weakly_canonical(fs::path(config_.run.dir) / "checkpoints");
  if (continues_) saved_step_ = state_.step;
}

std::string Trainer::start_sentence() const {
  if (!source_) return "from scratch";
  return text("from ", source_->path().string(), ", after step ", with_commas(state_.step), " and ",
              with_commas(state_.consumed_samples), " samples");
}

// The run directory is rank 0's.
void Trainer::open_run() {
  if (world_->leader()) {
    directory_ = std::make_unique<RunDirectory>(config_.run.dir);
    log_.open(directory_->log());
    if (!directory_->note().empty()) log_.line("note: " + directory_->note());
    fs::create_directories(directory_->checkpoints());
    remove_leftovers(directory_->checkpoints());
    write_file_atomically(directory_->config(), config_toml_);
    metrics_ = std::make_unique<LineFile>(directory_->metrics(), continues_ ? state_.metrics_bytes : 0);
    if (config_.log.tensorboard) tensorboard_ = std::make_unique<TensorBoardWriter>(directory_->path());
  }
  world_->broadcast("");
}

void Trainer::build() {
  runner_ = std::make_unique<StepRunner>(config_, *device_, world_->groups());
  if (source_)
    runner_->load(*source_);
  else
    runner_->initialize();
  source_.reset();
  state_.config = values_;
  state_.data_fingerprint = corpus_->train.fingerprint();
  state_.tokenizer_json = corpus_->tokenizer ? corpus_->tokenizer->to_json() : "";
  if (config_.sample.every > 0 && corpus_->tokenizer)
    sampler_ =
        std::make_unique<RunSampler>(config_, *corpus_->tokenizer, *device_, *runner_, world_->groups());
  // Rank d of D takes rows [(j D + d) rows, ...) of the step for its microbatch j.
  const int64_t rows = micro_batch_of(config_.train);
  const Communicator& data = *world_->groups().data;
  loader_ = std::make_unique<Loader>(corpus_->train, config_.train.seed, rows,
                                     state_.consumed_samples + rows * data.rank(), rows * data.size(),
                                     static_cast<int>(microbatches()) + 1);
}

ExitCode Trainer::run() {
  install_stop_handlers();
  meet();
  try {
    const ExitCode code = run_in_world();
    world_->leave();
    return code;
  } catch (const Error& error) {
    world_->fail(error.code(), error.what());
    throw;
  } catch (const std::exception& error) {
    world_->fail(ExitCode::device, error.what());
    throw;
  }
}

ExitCode Trainer::run_in_world() {
  open_data();
  open_device();
  if (world_->leader()) RunDirectory::check_writable(config_.run.dir);
  find_start();

  const MemoryPlan memory = StepRunner::plan(config_, world_->grid(), device_.get());
  require_memory(config_, world_->grid(), *device_);
  log_.line(text("hearth: training in ", config_.run.dir));
  for (const std::string& line :
       start_report(config_, world_->grid(), *corpus_, *device_, memory, start_sentence()))
    log_.line(line);
  if (!world_->alone()) log_.line("transport  " + world_->transport());

  open_run();
  build();
  JsonLine start("start");
  start.add("step", state_.step).add("parameters", parameter_count(config_.model));
  start.add("activation_bytes", memory.activations).add("memory_bytes", memory.total());
  start.add("corpus", corpus_->description).add("device", device_->description());
  start.add("seed", config_.train.seed).add("world", world_->size());
  record(start);

  try {
    return loop();
  } catch (...) {
    // Whatever went wrong after a good step, its weights are kept.
    // With other ranks that would need them all.
    if (world_->alone() && state_.step > saved_step_) save();
    throw;
  }
}

void Trainer::record(const JsonLine& line) {
  if (metrics_) metrics_->append(line.str());
}

// ---- the loop

ExitCode Trainer::loop() {
  if (at_end()) {
    return finish(ExitCode::done,
                  text("to go on, raise train.steps above ", config_.train.steps, "; the run is complete"));
  }
  // An evaluation that a stop cut off is made up for, so that a resumed run writes what an unbroken one does.
  if (state_.step > 0 && due(config_.eval.every) && !state_.val_loss) evaluate_now();
  while (!at_end()) {
    if (const auto code = stop_reason()) {
      save();
      return finish(*code, "stopped");
    }
    step();
    if (state_.skipped_in_a_row >= config_.train.max_skipped) return stop_numerical();
    after_step();
  }
  return finish(ExitCode::done, text("done in ", human_seconds(seconds_since(started_))));
}

void Trainer::step() {
  const Clock::time_point begin = Clock::now();
  world_->set_status(text("step ", state_.step + 1));
  std::vector<HostBatch> batches;
  for (int64_t i = 0; i < microbatches(); ++i)
    batches.push_back(loader_->next());

  StepInput input;
  input.first_sample = state_.consumed_samples;
  const double done = static_cast<double>(state_.consumed_samples) / static_cast<double>(config_.train.batch);
  input.learning_rate = learning_rate(config_.optimizer, config_.train.steps, done);
  input.optimizer_step = state_.optimizer_step + 1;
  input.wish = wish();
  std::function<void()> on_gradients;
  if (!config_.debug.dump_gradients.empty()) on_gradients = [this] { dump_gradients(); };
  const StepResult result = runner_->run(input, batches, on_gradients);

  agreed_stop_ = result.stop;
  state_.step += 1;
  state_.consumed_samples += config_.train.batch;
  state_.optimizer_step += result.finite ? 1 : 0;
  state_.skipped_in_a_row = result.finite ? 0 : state_.skipped_in_a_row + 1;
  state_.val_loss.reset();

  const double seconds = seconds_since(begin);
  train_seconds_ += seconds;
  smoothed_ms_ = smoothed_ms_ == 0 ? seconds * 1e3 : 0.95 * smoothed_ms_ + 0.05 * seconds * 1e3;
  StepMetrics m;
  m.step = state_.step;
  m.loss = result.loss;
  m.grad_norm = result.grad_norm;
  m.lr = input.learning_rate;
  m.tokens = state_.consumed_samples * config_.model.context;
  m.tokens_per_second = static_cast<double>(config_.train.batch * config_.model.context) / seconds;
  if (const auto peak = device_->peak_flops(config_.train.precision))
    m.mfu = flops_per_token(config_.model) * m.tokens_per_second / (*peak * world_->size());
  m.ms = seconds * 1e3;
  m.skipped = !result.finite;
  log_step(m);
}

void Trainer::log_step(const StepMetrics& m) {
  if (!world_->leader()) return;
  metrics_->append(step_line(m));
  if (!metrics_->failure().empty() && !metrics_failure_reported_) {
    log_.line("warning: " + metrics_->failure() + "; training goes on");
    metrics_failure_reported_ = true;
  }
  if (tensorboard_) {
    const double now = wall_time();
    tensorboard_->scalar("train/loss", m.step, m.loss, now);
    tensorboard_->scalar("train/grad_norm", m.step, m.grad_norm, now);
    tensorboard_->scalar("train/lr", m.step, m.lr, now);
    tensorboard_->scalar("train/tokens_per_second", m.step, m.tokens_per_second, now);
  }
  if (m.skipped) {
    log_.line(text("step ", m.step, "  loss ", m.loss, "  grad_norm ", m.grad_norm, ": not finite, samples ",
                   with_commas(state_.consumed_samples - config_.train.batch), " to ",
                   with_commas(state_.consumed_samples - 1), "; the update is skipped (",
                   state_.skipped_in_a_row, " in a row)"));
    return;
  }
  const bool first = m.step == first_step_ + 1;
  if (!first && !at_end() && m.step % std::max<int64_t>(1, config_.log.every) != 0) return;
  const double left = smoothed_ms_ * 1e-3 * static_cast<double>(config_.train.steps - m.step);
  log_.line(text("step ", m.step, "/", config_.train.steps, "  loss ", fixed(m.loss, 4), "  grad_norm ",
                 fixed(m.grad_norm, 3), "  lr ", scientific(m.lr), "  ", fixed(m.ms, 1), " ms  ",
                 with_commas(static_cast<int64_t>(m.tokens_per_second)), " tok/s",
                 m.mfu ? "  mfu " + fixed(*m.mfu * 100, 1) + "%" : "", "  left ", human_seconds(left)));
}

void Trainer::after_step() {
  if (!world_->alone() && due(config_.parallel.check_every)) compare_replicas();
  if (due(config_.eval.every)) evaluate_now();
  if (due(config_.sample.every)) sample_now();
  if (at_end())
    save();
  else if (config_.checkpoint.every > 0 && state_.step % config_.checkpoint.every == 0)
    save_or_go_on();
}

// Before anything is evaluated or saved.
void Trainer::compare_replicas() {
  const auto odd = runner_->odd_replica();
  if (odd) throw Error(ExitCode::peer, sentence_of(*odd, state_.step, compared_step_));
  compared_step_ = state_.step;
}

// A full disk costs a periodic checkpoint, not the run: the next one may succeed.
void Trainer::save_or_go_on() {
  try {
    save();
  } catch (const Error& error) {
    if (error.code() != ExitCode::data) throw;  // a lost rank, say
    log_.line(text("warning: no checkpoint at step ", state_.step, ": ", error.what(), "; training goes on"));
  }
}

void Trainer::evaluate_now() {
  const Clock::time_point begin = Clock::now();
  const EvaluationResult result =
      runner_->evaluate(corpus_->val, config_.eval.tokens, [this] { return wish(); });
  agreed_stop_ = result.stop;
  if (!result.loss) return;
  const double loss = *result.loss;
  state_.val_loss = loss;
  if (!state_.best_val_loss || loss < *state_.best_val_loss) state_.best_val_loss = loss;
  JsonLine line("eval");
  record(line.add("step", state_.step).add("val_loss", loss));
  if (tensorboard_) tensorboard_->scalar("eval/val_loss", state_.step, loss, wall_time());
  log_.line(text("step ", state_.step, "  val_loss ", fixed(loss, 4), "  (",
                 human_seconds(seconds_since(begin)), ")"));
}

void Trainer::sample_now() {
  if (!sampler_) return;
  const RunSampler::Sample sample = sampler_->draw([this] { return wish(); });
  if (sample.stop != StopWish::none) agreed_stop_ = sample.stop;
  log_.line(text("step ", state_.step, "  sample: ", sample.text));
}

void Trainer::save() {
  if (state_.step == saved_step_) return;
  if (!runner_->weights_finite()) {
    log_.line(text("warning: no checkpoint at step ", state_.step, ": the weights are not finite"));
    return;
  }
  const Clock::time_point begin = Clock::now();
  if (metrics_) {
    metrics_->sync();
    state_.metrics_bytes = metrics_->bytes();
  }
  const fs::path path = write_checkpoint(fs::path(config_.run.dir) / "checkpoints", state_,
                                         runner_->checkpoint_pieces(), *device_, team());
  saved_step_ = state_.step;
  if (!world_->leader()) return;
  prune_checkpoints(directory_->checkpoints(), config_.checkpoint.keep);
  JsonLine line("checkpoint");
  record(line.add("step", state_.step).add("path", path.string()));
  log_.line(
      text("step ", state_.step, "  saved ", path.string(), "  (", human_seconds(seconds_since(begin)), ")"));
}

CheckpointTeam Trainer::team() {
  return {world_->rank(), world_->size(), [this](const std::string& mine) { return world_->gather(mine); },
          [this](const std::string& leaders) { return world_->broadcast(leaders); }};
}

void Trainer::dump_gradients() {
  char name[64];
  std::snprintf(name, sizeof name, "step-%08lld.safetensors", static_cast<long long>(state_.step + 1));
  hearth::dump_gradients(fs::path(config_.debug.dump_gradients) / name, parameter_table(config_.model),
                         config_.train.precision, runner_->gradient_pieces(), *device_, world_->groups());
}

// ---- stopping

// What this rank wants.
StopWish Trainer::wish() const {
  switch (stop_signal()) {
    case 0:
      break;
    case SIGTERM:
      return StopWish::terminate;
    case SIGINT:
      return StopWish::interrupt;
    default:
      return StopWish::early;
  }
  const bool late =
      config_.train.max_minutes > 0 && seconds_since(started_) >= config_.train.max_minutes * 60;
  return late ? StopWish::early : StopWish::none;
}

// Alone, a wish is a decision; with others it is one once all have heard of it.
std::optional<ExitCode> Trainer::stop_reason() {
  switch (world_->alone() ? wish() : agreed_stop_) {
    case StopWish::none:
      break;
    case StopWish::early:
      log_.line("stopping: asked to stop early (SIGUSR1 or train.max_minutes)");
      return ExitCode::stopped_early;
    case StopWish::interrupt:
      log_.line("stopping on SIGINT");
      return ExitCode::interrupted;
    case StopWish::terminate:
      log_.line("stopping on SIGTERM");
      return ExitCode::terminated;
  }
  if (config_.train.stop_after > 0 && state_.step - first_step_ >= config_.train.stop_after) {
    log_.line(text("stopping after ", config_.train.stop_after, " steps (train.stop_after)"));
    return ExitCode::stopped_early;
  }
  return std::nullopt;
}

ExitCode Trainer::stop_numerical() {
  log_.line(text("stopping: ", state_.skipped_in_a_row,
                 " steps in a row were not finite (train.max_skipped); the ",
                 "newest checkpoint is from before",
                 "; a lower optimizer.lr, a longer warmup or a tighter optimizer.clip may help"));
  return finish(ExitCode::numerical, "stopped");
}

ExitCode Trainer::finish(ExitCode code, const std::string& why) {
  log_.line(text(why, " at step ", state_.step, " of ", config_.train.steps));
  std::string command = resume_command_;
  const size_t at = command.find(" train ");
  if (!world_->alone() && at != std::string::npos) command.insert(at, text(" launch -n ", world_->size()));
  log_.line(text("resume with: ", command));
  return code;
}

}  // namespace

ExitCode train(const RunConfig& config, const ConfigValues& values, const std::string& config_toml,
               const std::string& resume_command) {
  return Trainer(config, values, config_toml, resume_command).run();
}

}  // namespace hearth
