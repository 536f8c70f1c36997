#include "node.h"

#include <unistd.h>

#include <algorithm>

#include "scheduler/tenants/identity.h"
#include "spoken_version.h"

namespace nvshare::simulation {

using protocol::MessageType;

namespace {

constexpr uint64_t kProcessStart = 77;  // of each: their numbers never come again
constexpr Duration kRestartGrace = 2 * kSec;
constexpr Duration kNvmlInterval = 250 * kMs;

scheduler::GpuUuid uuid_of(int gpu) {
  scheduler::GpuUuid uuid;
  uuid.fill(static_cast<uint8_t>(gpu + 1));
  return uuid;
}

}  // namespace

template <typename Act>
auto Node::call(Act act) {
  const SpokenVersion speaks(version_);
  return act(*engine_);
}

Node::Node(World& world, const Plan& plan, Canary canary, std::string folder, std::string recording)
    : world_(world),
      plan_(plan),
      canary_(canary),
      folder_(std::move(folder)),
      recording_(std::move(recording)),
      random_(plan.seed * 31 + 5),
      version_(plan.former_scheduler ? kFormerVersion : protocol::kVersionMax) {
  for (const char* file : {"/clients", "/tenants"}) unlink((folder_ + file).c_str());
  start_engine();
}

void Node::start_engine() {
  scheduler::Engine::Options options;
  options.settings.lock_dir = options.settings.runtime_dir = folder_;
  options.settings.policy = plan_.policy;
  options.settings.restart_grace = kRestartGrace;
  options.settings.gpus_per_user = plan_.gpus;
  options.settings.sharing = plan_.sharing_measured ? scheduler::Sharing::kAuto : scheduler::Sharing::kTogether;
  if (canary_ == Canary::kDepartedIsFree) options.settings.policy.departed_grace = options.settings.policy.watched_grace = 0;
  if (canary_ == Canary::kContextsFree) options.settings.policy.overhead_default = 0;
  options.epoch = 1000 + ++lives_;
  if (!recording_.empty()) {
    Result<scheduler::TraceWriter> recording = scheduler::TraceWriter::open(recording_, options.settings.policy);
    if (!recording) return world_.fail(recording.error().text);
    options.trace = std::make_unique<scheduler::TraceWriter>(std::move(*recording));
  }
  const bool restarts =
      std::any_of(plan_.faults.begin(), plan_.faults.end(), [](const Fault& fault) { return fault.kind == Fault::Kind::kRestart; });
  if (restarts) {
    options.known_clients_file = folder_ + "/clients";
    if (canary_ == Canary::kClientsForgotten) unlink(options.known_clients_file.c_str());
    options.tenants_file = folder_ + "/tenants";
  }
  options.look_at_host = [this] {
    return scheduler::HostBudget::Machine{std::max<Bytes>(plan_.host_bytes - host_use_(0), 0), std::nullopt};
  };
  options.host_memory_of = [this](pid_t pid) { return std::pair(host_use_(pid), int64_t{0}); };
  options.look_at_cgroups = [this](pid_t pid) {
    const auto at = tenants_.find(pid);
    return at == tenants_.end() ? std::string() : "0::/system.slice/" + tenant_name(at->second) + ".service\n";
  };
  options.start_time_of = options.start_time_if_alive = [this](pid_t pid) { return tenants_.contains(pid) ? kProcessStart : 0; };
  for (int gpu = 0; plan_.nvml && gpu < plan_.gpus; ++gpu) options.gpus.push_back({uuid_of(gpu), "card", plan_.gpu_bytes});
  engine_.emplace(std::move(options), *this, world_.now());
  world_.tell("scheduler: starts, epoch {}, protocol version {}", 1000 + lives_, version_);
  world_.after(kSec, [this, life = lives_] { housekeep(life); });
  if (plan_.nvml) world_.after(kNvmlInterval, [this, life = lives_] { look_with_nvml(life); });
  engine_called();
}

// What is seen arrives a little later, when it may be true no more.
void Node::look_with_nvml(uint64_t life) {
  if (!engine_ || life != lives_) return;
  std::vector<scheduler::GpuSample> samples;
  const std::vector<scheduler::GpuUuid> in_use = engine_->to_look_at().in_use;
  for (int gpu = 0; gpu < plan_.gpus; ++gpu) {
    if (std::find(in_use.begin(), in_use.end(), uuid_of(gpu)) == in_use.end()) continue;
    scheduler::GpuSample sample = nvml_(gpu);
    sample.uuid = uuid_of(gpu);
    sample.taken_at = world_.now();
    samples.push_back(std::move(sample));
  }
  world_.after(random_.between(10 * kUs, 20 * kMs), [this, life, samples = std::move(samples)] {
    if (!engine_ || life != lives_) return;
    call([&](auto& engine) { engine.memory_sampled(samples, world_.now()); });
    engine_called();
    world_.after(kNvmlInterval, [this, life] { look_with_nvml(life); });
  });
}

void Node::housekeep(uint64_t life) {
  if (!engine_ || life != lives_) return;
  call([&](auto& engine) { engine.housekeep(world_.now()); });
  engine_called();
  world_.after(kSec, [this, life] { housekeep(life); });
}

std::string Node::tenant_name(int tenant) const { return "tenant" + std::to_string(tenant); }

pid_t Node::start_process(int tenant) {
  tenants_[++next_pid_] = tenant;
  return next_pid_;
}

void Node::process_ended(pid_t pid) { tenants_.erase(pid); }

// ---- connections ----

ConnectionId Node::connect(pid_t pid, Endpoint& endpoint) {
  if (!engine_) return 0;
  const ConnectionId id = next_connection_++;
  Link& link = links_[id];
  link.client = &endpoint;
  link.pid = pid;
  scheduler::Peer peer;
  peer.pid = pid;
  peer.uid = 1000;
  peer.start_time = kProcessStart;
  peer.account = "user 1000";
  call([&](auto& engine) { engine.connected(id, std::move(peer)); });
  return id;
}

// Packets of one direction of a connection keep their order.
Instant Node::arrival(Instant& last) {
  last = std::max(last + 1, world_.now() + random_.between(5 * kUs, std::max(plan_.latency, 6 * kUs)));
  return last - world_.now();
}

void Node::send_packet(ConnectionId connection, const Packet& packet) {
  const auto at = links_.find(connection);
  if (at == links_.end() || packet.length == 0 || !at->second.listened) return;
  ++at->second.up;
  world_.after(arrival(at->second.up_last), [this, connection, packet] { take(connection, packet); });
}

void Node::take(ConnectionId connection, const Packet& packet) {
  Link& link = links_.at(connection);
  --link.up;
  if (!link.served || !engine_) return;
  check_message(link, packet);
  call([&](auto& engine) { engine.received(connection, packet.span(), world_.now()); });
  engine_called();
}

policy::ClientState Node::state_of(uint64_t client) {
  for (const policy::ClientGlimpse& known : glimpse()) {
    if (known.client == client) return known.state;
  }
  return policy::ClientState::kIdle;
}

// What the scheduler can take in the client's state, as it knows that just before.
void Node::check_message(const Link& link, const Packet& packet) {
  const auto type = protocol::decode_type(packet.span());
  if (!type || link.id == 0) return;
  const policy::ClientState state = state_of(link.id);
  const bool holds = state != policy::ClientState::kIdle && state != policy::ClientState::kWaiting;
  const auto fail = [&] {
    world_.fail(fmt::format("client {} sends {} while it is {}", link.id, protocol::name_of(*type), name_of(state)));
  };
  if (*type == MessageType::kReqLock && state != policy::ClientState::kIdle) return fail();
  if (*type != MessageType::kLockReleased && *type != MessageType::kLockPaused && *type != MessageType::kLockResumed) return;
  // Each begins with the grant: of a former scheduler it means nothing.
  const auto released = protocol::decode<protocol::LockReleased>(packet.span());
  const auto paused = protocol::decode<protocol::LockPaused>(packet.span());
  const auto resumed = protocol::decode<protocol::LockResumed>(packet.span());
  const uint64_t epoch = released ? released->grant.epoch : paused ? paused->grant.epoch : resumed ? resumed->grant.epoch : 0;
  if (epoch == 1000 + lives_ && !holds) fail();
}

void Node::send(ConnectionId connection, const Packet& packet, Descriptors) {
  const auto at = links_.find(connection);
  if (at == links_.end()) return;
  if (const auto answer = protocol::decode<protocol::Registered>(packet.span())) at->second.id = answer->client_id;
  if (const auto type = protocol::decode_type(packet.span()); type && *type == MessageType::kRefused) {
    world_.fail(
        fmt::format("the scheduler refuses pid {}: {}", at->second.pid, protocol::decode<protocol::Refused>(packet.span())->reason));
  }
  ++at->second.down;
  world_.after(arrival(at->second.down_last), [this, connection, packet] {
    Link& link = links_.at(connection);
    --link.down;
    if (link.listened) link.client->arrived(connection, packet);
  });
}

void Node::close(ConnectionId connection) {
  const auto at = links_.find(connection);
  if (at == links_.end() || !at->second.served) return;
  at->second.served = false;
  end_down(connection);
}

// What the scheduler sent before is read first.
void Node::end_down(ConnectionId connection) {
  world_.after(arrival(links_.at(connection).down_last), [this, connection] {
    Link& link = links_.at(connection);
    if (!link.listened) return;
    link.listened = false;
    link.client->ended(connection);
  });
}

void Node::hang_up(ConnectionId connection) {
  const auto at = links_.find(connection);
  if (at == links_.end() || !at->second.listened) return;
  at->second.listened = false;
  if (canary_ == Canary::kDeathUnnoticed) return;
  if (at->second.holders == 0) world_.after(arrival(at->second.up_last), [this, connection] { engine_lost(connection); });
}

void Node::process_dies(pid_t pid) {
  if (canary_ == Canary::kChildHidesDeath) return;  // until the last holder ends
  for (auto& [id, link] : links_) {
    if (link.pid != pid || link.holders == 0) continue;
    world_.after(random_.between(5 * kUs, kMs), [this, connection = id] { engine_lost(connection); });
  }
}

void Node::hold(ConnectionId connection, Duration lasts) {
  const auto at = links_.find(connection);
  if (at == links_.end() || !at->second.listened) return;
  ++at->second.holders;
  world_.after(lasts, [this, connection] {
    Link& link = links_.at(connection);
    if (--link.holders > 0 || link.listened) return;
    world_.after(arrival(link.up_last), [this, connection] { engine_lost(connection); });
  });
}

void Node::engine_lost(ConnectionId connection) {
  Link& link = links_.at(connection);
  if (!link.served) return;
  link.served = false;
  if (!engine_) return;
  call([&](auto& engine) { engine.disconnected(connection, "its connection ended", world_.now()); });
  engine_called();
}

void Node::cut(ConnectionId connection) {
  const auto at = links_.find(connection);
  if (at == links_.end() || !at->second.served || !at->second.listened) return;
  // Where the client broke it off, a child that has it too keeps it open.
  const bool is_held = at->second.holders > 0 && random_.chance(50);
  if (!is_held) world_.after(arrival(at->second.up_last), [this, connection] { engine_lost(connection); });
  end_down(connection);
}

bool Node::quiet(ConnectionId connection) const {
  const auto at = links_.find(connection);
  return at != links_.end() && at->second.served && at->second.listened && at->second.up == 0 && at->second.down == 0;
}

void Node::restart(Duration away, bool former) {
  if (!engine_) return;
  world_.tell("scheduler: killed");
  engine_.reset();
  due_ = INT64_MAX;
  for (auto& [id, link] : links_) {
    if (!link.served) continue;
    link.served = false;
    end_down(id);
  }
  world_.after(away, [this, former] {
    version_ = former ? kFormerVersion : protocol::kVersionMax;
    start_engine();
  });
}

// ---- the engine ----

void Node::engine_called() {
  glimpse_stale_ = true;
  if (!engine_) return;
  if (auto broken = engine_->parts().steps.violated_invariant()) return world_.fail("the policy violates an invariant: " + *broken);
  const std::optional<policy::Instant> deadline = engine_->next_deadline();
  if (!deadline || *deadline >= due_) return;
  due_ = *deadline;
  world_.after(due_ - world_.now(), [this, life = lives_, due = due_] {
    if (!engine_ || life != lives_ || due != due_) return;
    due_ = INT64_MAX;
    if (const auto then = engine_->next_deadline(); then && *then <= world_.now())
      call([&](auto& engine) { engine.deadline_reached(world_.now()); });
    engine_called();
  });
}

bool Node::has_client_of(pid_t pid) const {
  if (!engine_) return false;
  const auto& clients = engine_->parts().clients.all();
  return std::any_of(clients.begin(), clients.end(), [&](const auto& entry) { return entry.second.pid == pid; });
}

const std::vector<policy::ClientGlimpse>& Node::glimpse() {
  if (!engine_) {
    glimpse_.clear();
  } else if (glimpse_stale_) {
    policy::glimpse(engine_->parts().steps.state(), glimpse_);
  }
  glimpse_stale_ = false;
  return glimpse_;
}

void Node::set(int tenant, const std::function<void(protocol::admin::SetRequest&)>& change) {
  if (!engine_) return;
  protocol::admin::SetRequest request;
  request.tenant = tenant_name(tenant) + ".service";
  change(request);
  const Result<void> result = call([&](auto& engine) { return engine.set(request, world_.now()); });  // an error: it has no clients yet
  world_.tell("scheduler: a limit of tenant {} is set{}", tenant, result ? "" : fmt::format(" in vain: {}", result.error().text));
  engine_called();
}

void Node::set_compute_limit(int tenant, int percent) {
  set(tenant, [&](protocol::admin::SetRequest& request) { request.gpu_core_limit = percent; });
}
void Node::set_memory_limit(int tenant, Bytes bytes) {
  set(tenant, [&](protocol::admin::SetRequest& request) { request.gpu_memory_limit = bytes; });
}
void Node::set_priority(int tenant, int priority) {
  set(tenant, [&](protocol::admin::SetRequest& request) { request.priority = priority; });
}

}  // namespace nvshare::simulation
