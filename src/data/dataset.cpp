// Datasets: shards in memory, slices of shards, and the sample windows over them.
#include "data/dataset.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/shards.h"

namespace hearth {
namespace {

class MemoryShard final : public TokenShard {
 public:
  MemoryShard(std::vector<int32_t> tokens, std::string name)
      : tokens_(std::move(tokens)), name_(std::move(name)) {}
  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  void read(int64_t begin, std::span<int32_t> out) const override {
    std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
  }
  std::string name() const override { return name_; }

 private:
  std::vector<int32_t> tokens_;
  std::string name_;
};

class ShardSlice final : public TokenShard {
 public:
  ShardSlice(std::shared_ptr<const TokenShard> whole, int64_t begin, int64_t end)
      : whole_(std::move(whole)), begin_(begin), end_(end) {}
  int64_t size() const override { return end_ - begin_; }
  void read(int64_t begin, std::span<int32_t> out) const override { whole_->read(begin_ + begin, out); }
  std::string name() const override { return whole_->name(); }

 private:
  std::shared_ptr<const TokenShard> whole_;
  int64_t begin_;
  int64_t end_;
};

std::string too_short(const std::vector<std::unique_ptr<TokenShard>>& shards, int64_t tokens,
                      int64_t context) {
  const std::string where =
      shards.size() == 1 ? shards[0]->name() : text("the ", shards.size(), " shards together");
  std::string sentence =
      text(where, ": found ", with_commas(tokens),
           " tokens, but a sample needs context + 1 = ", with_commas(context + 1), " tokens");
  if (shards.size() > 1) sentence += " of one shard";
  return sentence + "; give more data or a smaller model.context";
}

// The ends of a shard, as the bytes of its first and last 16384 tokens.
std::string ends_of(const TokenShard& shard) {
  const int64_t count = std::min<int64_t>(shard.size(), 64 * 1024 / sizeof(int32_t));
  std::vector<int32_t> tokens(2 * count);
  shard.read(0, std::span(tokens).first(count));
  shard.read(shard.size() - count, std::span(tokens).last(count));
  return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(int32_t));
}

}  // namespace

std::unique_ptr<TokenShard> memory_shard(std::vector<int32_t> tokens, std::string name) {
  return std::make_unique<MemoryShard>(std::move(tokens), std::move(name));
}

std::unique_ptr<TokenShard> slice_shard(std::shared_ptr<const TokenShard> whole, int64_t begin, int64_t end) {
  check(begin >= 0 && begin <= end && end <= whole->size(), "slice [", begin, ", ", end, ") of ",
        whole->size());
  return std::make_unique<ShardSlice>(std::move(whole), begin, end);
}

struct Dataset::State {
  std::vector<std::unique_ptr<TokenShard>> shards;
  std::vector<int64_t> first_sample;  // of each shard, and the total at the end
  int64_t tokens = 0;
  int64_t context = 0;
};

Dataset::Dataset(std::vector<std::unique_ptr<TokenShard>> shards, int64_t context) {
  check(context > 0, "context ", context);
  auto state = std::make_shared<State>();
  state->context = context;
  state->first_sample.push_back(0);
  for (const auto& shard : shards) {
    state->tokens += shard->size();
    const int64_t samples = std::max<int64_t>(0, shard->size() - 1) / context;
    state->first_sample.push_back(state->first_sample.back() + samples);
  }
  if (state->first_sample.back() == 0) throw Error(ExitCode::data, too_short(shards, state->tokens, context));
  state->shards = std::move(shards);
  state_ = std::move(state);
}

int64_t Dataset::samples() const {
  return state_->first_sample.back();
}

int64_t Dataset::tokens() const {
  return state_->tokens;
}

int64_t Dataset::context() const {
  return state_->context;
}

void Dataset::read_sample(int64_t index, std::span<int32_t> inputs, std::span<int32_t> targets,
                          int64_t phase) const {
  const int64_t context = state_->context;
  check(index >= 0 && index < samples(), "sample ", index, " of ", samples());
  check(phase >= 0 && phase < context, "phase ", phase, " for context ", context);
  check(std::ssize(inputs) == context && std::ssize(targets) == context, "sample buffers of ", inputs.size(),
        " and ", targets.size(), " tokens for context ", context);
  const auto& first = state_->first_sample;
  const auto after = std::upper_bound(first.begin(), first.end(), index);
  const size_t s = static_cast<size_t>(after - first.begin()) - 1;
  const TokenShard& shard = *state_->shards[s];
  const int64_t start = std::min((index - first[s]) * context + phase, shard.size() - context - 1);
  shard.read(start, inputs);
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  shard.read(start + context, targets.last(1));
}

std::string Dataset::fingerprint() const {
  std::string summary;
  for (const auto& shard : state_->shards) {
    const std::string name = fs::path(shard->name()).filename().string();
    summary += text(name, "\n", shard->size(), "\n", sha256_hex(ends_of(*shard)), "\n");
  }
  return sha256_hex(summary);
}

std::string Dataset::description() const {
  const std::string tokens = with_commas(state_->tokens) + " tokens";
  if (state_->shards.size() == 1) return state_->shards[0]->name() + " (" + tokens + ")";
  return text(state_->shards.size(), " shards, ", tokens);
}

}  // namespace hearth
