#include "parallel/world.h"

#include "comm/gloo_communicator.h"
#include "comm/nccl.h"
#include "comm/staged_communicator.h"
#include "parallel/transport.h"

namespace hearth {

int64_t data_ranks(const WorldOptions& o, int64_t world) {
  const int64_t model_ranks = o.tensor * o.pipeline;
  const bool fits = o.data > 0 ? model_ranks * o.data == world : world % model_ranks == 0;
  if (fits) return world / model_ranks;
  const std::string wanted = o.data > 0 ? text(" x parallel.data ", o.data, " = ", model_ranks * o.data) : "";
  const int64_t below = world / model_ranks * model_ranks;
  fail_usage("this run has ", world, world == 1 ? " process" : " processes", ", but parallel.tensor ",
             o.tensor, " x parallel.pipeline ", o.pipeline, wanted,
             o.data > 0 ? text("; start it with `hearth launch -n ", model_ranks * o.data, "`")
                        : text("; start a multiple of ", model_ranks, ", such as ",
                               below > 0 ? text(below, " or ") : std::string(), below + model_ranks));
}

World::World(const WorldOptions& options) {
  const Rendezvous where = find_rendezvous([](const std::string&) { return std::nullopt; });
  const int64_t data = data_ranks(options, where.world);
  groups_.grid = Grid(static_cast<int>(options.tensor), static_cast<int>(data),
                      static_cast<int>(options.pipeline), where.rank);
  local_rank_ = where.local_rank;
  if (where.world == 1) return;

  ControlOptions control;
  control.where = where;
  control.build = options.build;
  control.config = options.config;
  control.timeout = std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000));
  control.init_timeout = std::chrono::milliseconds(static_cast<int64_t>(options.init_timeout_seconds * 1000));
  control.log = options.log;
  control.while_waiting = options.while_waiting;
  control_ = std::make_unique<ControlPlane>(control);
}

void World::connect(Device& device, const std::string& transport) {
  if (alone()) return;
  const NcclStatus nccl = device.host_memory() ? NcclStatus{} : nccl_status();
  const Member& self = control_->member(rank());
  std::vector<RankDevice> devices;
  for (const std::string& said : gather(
           encode({self.host, self.pid, device.kind(), device.identity(), nccl.version, nccl.unavailable})))
    devices.push_back(decode(said));
  // Rank 0 decides; a refusal is every rank's.
  const TransportChoice choice =
      decode_choice(broadcast(leader() ? encode(choose_transport(transport, devices)) : ""));
  if (!choice.refusal.empty()) throw Error(choice.code, choice.refusal);
  transport_ = choice.description;

  const bool staged = !choice.nccl && !device.host_memory();
  if (choice.nccl)
    fabric_ = make_nccl_fabric(*control_, device);
  else
    fabric_ = std::make_unique<GlooFabric>(*control_);
  const auto join = [&](Axis axis, std::unique_ptr<Communicator>& communicator) {
    if (grid().size(axis) == 1) return;
    communicator = fabric_->connect(name_of(axis), grid().group(axis));
    if (staged) communicator = std::make_unique<StagedCommunicator>(std::move(communicator), device);
  };
  join(Axis::tensor, groups_.tensor);
  join(Axis::data, groups_.data);
  join(Axis::pipeline, groups_.pipeline);
}

std::vector<std::string> World::gather(const std::string& mine) {
  if (alone()) return {mine};
  const std::string key = text("gather/", exchanges_++, "/");
  if (!leader()) {
    control_->put(key + std::to_string(rank()), mine);
    return {};
  }
  std::vector<std::string> all{mine};
  for (int r = 1; r < size(); ++r)
    all.push_back(control_->get(key + std::to_string(r)));
  return all;
}

std::string World::broadcast(const std::string& leaders) {
  if (alone()) return leaders;
  const std::string key = text("broadcast/", exchanges_++);
  if (leader()) control_->put(key, leaders);
  return leader() ? leaders : control_->get(key);
}

void World::set_status(const std::string& status) {
  if (control_) control_->set_status(status);
}

void World::fail(ExitCode code, const std::string& reason) noexcept {
  if (control_) control_->fail(code, reason);
}

void World::leave() {
  if (control_) control_->leave();
}

}  // namespace hearth
