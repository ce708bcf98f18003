#include "parallel/replicas.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/philox.h"

namespace hearth {

namespace {

constexpr int64_t piece_bytes = int64_t{4} << 20;  // hashed at a time, through host memory

// Four independent lanes, so that the multiplications overlap; the position of a word decides its lane, and
// the order within a lane its weight.
class Hash {
 public:
  void add(const std::byte* data, size_t bytes) {
    size_t at = 0;
    for (; at + 32 <= bytes; at += 32)
      for (size_t lane = 0; lane < 4; ++lane)
        mix(lane, word(data + at + 8 * lane, 8));
    for (size_t lane = 0; at < bytes; at += 8, ++lane)
      mix(lane, word(data + at, std::min<size_t>(8, bytes - at)));
  }
  uint64_t value() const {
    uint64_t h = 0;
    for (uint64_t lane : lanes_)
      h = mix64(h ^ lane);
    return h;
  }

 private:
  static uint64_t word(const std::byte* from, size_t bytes) {
    uint64_t w = 0;
    std::memcpy(&w, from, bytes);
    return w;
  }
  void mix(size_t lane, uint64_t w) {
    uint64_t& h = lanes_[lane];
    h = (h ^ w) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
  }

  uint64_t lanes_[4] = {1, 2, 3, 4};
};

// Values of all ranks of a group, in rank order: [size, n].
std::vector<uint64_t> gathered(Device& device, Communicator& group, const std::vector<uint64_t>& mine) {
  if (group.size() == 1) return mine;
  const auto n = static_cast<int64_t>(mine.size());
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(group.size()));
  const Buffer buffer(device, all.size() * sizeof(uint64_t));
  const Tensor out(buffer.data(), DType::i64, {n * group.size()});
  const Tensor own = out.rows(n * group.rank(), n);
  device.copy_in(own, mine.data());
  group.all_gather(own, out).wait();
  device.copy_out(all.data(), out);
  return all;
}

// A copy: who has it, and its hash.
struct Copy {
  int rank;
  uint64_t hash;
};

// The first copy that is not like most of them.
std::optional<OddReplica> odd_among(const std::vector<Copy>& copies) {
  std::map<uint64_t, int> count;
  for (const Copy& copy : copies)
    ++count[copy.hash];
  if (count.size() == 1) return std::nullopt;
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto most = std::max_element(count.begin(), count.end(), fewer);
  const auto is_common = [&](const Copy& c) { return c.hash == most->first; };
  OddReplica odd;
  odd.rank = std::find_if_not(copies.begin(), copies.end(), is_common)->rank;
  odd.other = std::find_if(copies.begin(), copies.end(), is_common)->rank;
  odd.certain =
      std::count_if(count.begin(), count.end(), [&](const auto& c) { return c.second == most->second; }) == 1;
  if (!odd.certain && odd.other < odd.rank) std::swap(odd.rank, odd.other);
  return odd;
}

// Finds an odd copy and puts it into one number, so that all ranks can agree on one: the largest counts.
class Search {
 public:
  Search(Device& device, const ParameterSet& parameters, const Optimizer& optimizer,
         const ProcessGroups& groups)
      : device_(device), parameters_(parameters.all()), groups_(groups) {
    for (const Parameter& p : parameters_)
      hashes_.push_back(hash_of(device, p.weight));
    if (optimizer.sharded()) return;
    for (const OptimizerPiece& piece : optimizer.pieces())
      if (piece.weight) hashes_[piece.parameter] ^= mix64(hash_of(device, piece.master));
  }

  // Over the data and tensor axes, that is within a stage.
  void within_stage() {
    const size_t n = hashes_.size();
    const auto tensor = static_cast<size_t>(groups_.tensor->size());
    const auto data = static_cast<size_t>(groups_.data->size());
    const std::vector<uint64_t> all =
        gathered(device_, *groups_.data, gathered(device_, *groups_.tensor, hashes_));  // [data, tensor, n]
    for (size_t i = 0; i < n; ++i) {
      const bool split = parameters_[i].spec.shard_dim >= 0;
      std::vector<Copy> copies;
      for (size_t d = 0; d < data; ++d)
        for (size_t t = 0; t < tensor; ++t)
          if (!split || static_cast<int>(t) == groups_.tensor->rank())
            copies.push_back(
                {rank_at(static_cast<int>(t), static_cast<int>(d)), all[(d * tensor + t) * n + i]});
      note(odd_among(copies), parameters_[i].spec);
    }
  }

  // The tied embedding, between the ends of the pipeline.
  void between_ends() {
    const Communicator& pipeline = *groups_.pipeline;
    std::vector<uint64_t> mine{0};
    for (size_t i = 0; i < hashes_.size(); ++i)
      if (parameters_[i].spec.tied_head) mine[0] = hashes_[i];
    const std::vector<uint64_t> all = gathered(device_, *groups_.pipeline, mine);
    if (pipeline.rank() != 0) return;
    const int last = pipeline.size() - 1;
    for (const Parameter& p : parameters_)
      if (p.spec.tied_head)
        note(odd_among({{groups_.grid.rank(), all.front()},
                        {groups_.grid.neighbour(Axis::pipeline, last), all.back()}}),
             p.spec);
  }

  // The verdict of all ranks.
  int64_t agreed() const {
    int64_t value = verdict_;
    const Buffer buffer(device_, sizeof value);
    const Tensor shared(buffer.data(), DType::i64, {1});
    device_.copy_in(shared, &value);
    groups_.all_reduce(shared, Reduce::max);
    device_.copy_out(&value, shared);
    return value;
  }

  // From the top: the tensor (the earlier the larger), the two ranks, 20 bits each, and one for certainty.  0
  // is no odd copy.
  static constexpr int bits = 20;
  static OddReplica decode(int64_t verdict, const ModelConfig& model) {
    const int64_t mask = (int64_t{1} << bits) - 1;
    OddReplica odd;
    odd.certain = (verdict & 1) != 0;
    odd.other = static_cast<int>((verdict >> 1) & mask);
    odd.rank = static_cast<int>((verdict >> (1 + bits)) & mask);
    const int64_t id = mask - (verdict >> (1 + 2 * bits));
    odd.tensor = parameter_table(model)[static_cast<size_t>(id)].name;
    return odd;
  }

 private:
  int rank_at(int tensor, int data) const {
    const Grid& g = groups_.grid;
    return tensor + g.size(Axis::tensor) * (data + g.size(Axis::data) * g.at(Axis::pipeline));
  }

  void note(const std::optional<OddReplica>& odd, const ParamSpec& spec) {
    if (!odd) return;
    const int64_t mask = (int64_t{1} << bits) - 1;
    const int64_t value = ((mask - static_cast<int64_t>(spec.id)) << (1 + 2 * bits)) |
                          (int64_t{odd->rank} << (1 + bits)) | (int64_t{odd->other} << 1) |
                          int64_t{odd->certain};
    verdict_ = std::max(verdict_, value);
  }

  Device& device_;
  const std::vector<Parameter>& parameters_;
  const ProcessGroups& groups_;
  std::vector<uint64_t> hashes_;  // by parameter
  int64_t verdict_ = 0;
};

}  // namespace

uint64_t hash_of(Device& device, const Tensor& tensor) {
  const Tensor flat = tensor.reshaped({tensor.elements()});
  const int64_t at_once = piece_bytes / size_of(tensor.dtype);
  std::vector<std::byte> host;
  Hash hash;
  for (int64_t begin = 0; begin < flat.elements(); begin += at_once) {
    const Tensor piece = flat.rows(begin, std::min(at_once, flat.elements() - begin));
    host.resize(static_cast<size_t>(piece.bytes()));
    device.copy_out(host.data(), piece);
    hash.add(host.data(), host.size());
  }
  return hash.value();
}

std::string sentence_of(const OddReplica& odd, int64_t step, int64_t agreed) {
  const std::string who =
      odd.certain ? text("rank ", odd.rank, " holds another ", odd.tensor, " than rank ", odd.other,
                         " and the other ranks that have a copy")
                  : text("ranks ", odd.rank, " and ", odd.other, " hold different copies of ", odd.tensor);
  return text("after step ", step, " ", who,
              ": memory or communication has failed there; they were equal after step ", agreed,
              ", so resume from a checkpoint that is not younger (checkpoint.resume = its path)");
}

std::optional<OddReplica> find_odd_replica(Device& device, const ModelConfig& model,
                                           const ParameterSet& parameters, const Optimizer& optimizer,
                                           const ProcessGroups& groups) {
  Search search(device, parameters, optimizer, groups);
  search.within_stage();
  if (model.tied && groups.pipeline->size() > 1) search.between_ends();
  const int64_t verdict = search.agreed();
  if (verdict == 0) return std::nullopt;
  return Search::decode(verdict, model);
}

}  // namespace hearth
