// A client registers: what is known of its process from before, whose limits hold for it, and what it is told.
#include <cstring>
#include <utility>

#include "policy/parts.h"
#include "scheduler/clients/tenant_use.h"
#include "scheduler/engine/client_measures.h"
#include "scheduler/engine/engine.h"

namespace nvshare::scheduler {

using namespace protocol;

namespace {

constexpr policy::Duration kSampleHolds = 5'000'000'000;  // so long a look at the GPU says something of a process that comes now

}  // namespace

void Engine::register_client(ConnectionId connection, const Register& message, policy::Instant now) {
  const uint16_t version = common_version(message.version_min, message.version_max);
  if (version == 0) {
    return refuse(connection,
                  fmt::format("no common version: this scheduler speaks {} to {}, the library {} to {}; install the same release of both",
                              kVersionMin, version_spoken(), message.version_min, message.version_max),
                  now);
  }
  if (message.gpu_total_bytes == 0) return refuse(connection, "bad message: Register holds only its versions", now);
  if (awaits_listing(connection, message)) return;
  const Result<policy::GpuId> gpu = admission_.gpu_of(message, connections_.at(connection).peer, now);
  if (!gpu) return refuse(connection, gpu.error().text, now);
  const bool holds = absent_.hold().holds();
  if (!holds) absent_.count(now);
  if (!holds) policy_.apply(departures_.hold_absent(gpus_, settings_.policy, now), now);
  if (message.asks_only != 0) return answer_only(connection, message, version, *gpu);

  const Peer& peer = connections_.at(connection).peer;
  Former former = take_former(peer, *gpu, message, now);
  Tenant& tenant = tenants_.join(peer, printable(message.program), former.tenant);
  housekeeping_.save_tenants_soon(now);
  // What an earlier scheduler was told of the tenant.
  if (former.returns) recall_limit(tenant, gpus_[*gpu].uuid_text, bounded(message.node_limit));
  settle_memory(tenant, gpus_[*gpu].total);
  const int64_t node_limit = tenant.memory_limit_on(gpus_[*gpu].uuid_text);
  const uint64_t part = part_of(tenant, peer.pid, tenants_.cgroups);
  if (auto ok = limits_.admit_reservation(*gpu, tenant, settings_.gpu_memory_oversub_ratio); !ok && !former.returns) {
    tenants_.leave(tenant.id);
    for (const policy::ClientId left : former.replaced) apply(policy::ClientMemoryFreed{left}, now);
    if (!holds) limits_.freeze(false, now);
    return refuse(connection, ok.error().text, now, true);
  }

  Client& client = add_client(connection, message, *gpu, tenant, former, now);
  host_.join(client, former.returns);
  usage_totals_.joins(tenant.id, *gpu, {policy::view_of_tenant(policy_.state(), *gpu, tenant.id, now)});
  remember(client, message.memory, now);
  const MemoryLedger::Decisions decisions =
      limits_.join({client.id, tenant.id, *gpu, bounded(message.memory_limit), node_limit, bounded(message.memory.charged),
                    static_cast<int64_t>(message.lease), false, part},
                   now);
  log_joined(client, tenant, message, former, now);
  const policy::ClientJoined joined = begin_client(client, tenant, message, std::move(former), now);
  record_names(client, tenant.name, now);
  policy_.steps().record(joined, now);
  accounts_.take_over(tenant.id, *gpu, now);
  limits_.perform(decisions, now);
  if (!holds) limits_.freeze(false, now);
  host_.prepare_swaps(*gpu);
  if (wants_lock(message) && holds) request_lock(client.id, now);
  absent_.one_is_back(now);
  sharing_.tell(client, now);
  if (hooks_.client_joined) hooks_.client_joined(client.uid);
}

// A MIG device may have been made since NVML was last asked: that is asked again before its first client is refused.
bool Engine::awaits_listing(ConnectionId connection, const Register& message) {
  if (!gpus_.uses_nvml() || !hooks_.list_gpus) return false;
  Connection& at = connections_.at(connection);
  if (gpus_.lists(uuid_of(message)) || at.listed) return false;
  at.awaits_listing = message;
  hooks_.list_gpus();
  return true;
}

void Engine::gpus_listed(const std::vector<GpuUuid>& mig_devices, policy::Instant now) {
  gpus_.list_mig_devices(mig_devices);
  std::vector<ConnectionId> waiting;
  for (const auto& [id, connection] : connections_) {
    if (connection.awaits_listing) waiting.push_back(id);
  }
  for (const ConnectionId id : waiting) {
    const auto at = connections_.find(id);
    if (at == connections_.end()) continue;  // of a process that came again on another connection
    const Register message = *at->second.awaits_listing;
    at->second.awaits_listing.reset();
    at->second.listed = true;
    register_client(id, message, now);
  }
}

// It becomes no client: it is told what the GPU would look like to it.
void Engine::answer_only(ConnectionId connection, const Register& message, uint16_t version, policy::GpuId gpu) {
  const Peer& peer = connections_.at(connection).peer;
  const auto total = static_cast<uint64_t>(gpus_[gpu].total);
  const Tenants::Asked tenant = tenants_.ask(peer, gpus_[gpu].uuid_text, gpus_[gpu].total);
  const auto limit = static_cast<uint64_t>(lower_limit(bounded(message.memory_limit), tenant.gpu_memory_limit));
  transport_.send(connection,
                  encode(Registered{version, {}, 0, policy_.epoch(), limit, 0, 0, 0, total, total, NVSHARE_VERSION, 0, {}}, version), {});
  for (const TenantUse& use : use_of(clients_, tenant.id, gpu, gpus_[gpu].total, limit, peer.pid))
    transport_.send(connection, encode(use, version), {});
  transport_.close(connection);
  connections_.erase(connection);
}

Engine::Former Engine::take_former(const Peer& peer, policy::GpuId gpu, const Register& message, policy::Instant now) {
  Former former;
  // A process has one client per GPU. It comes again when its connection broke and we have not noticed yet.
  if (const Client* other = clients_.of_process(peer.pid, gpu)) {
    transport_.close(other->connection);
    connections_.erase(other->connection);
    limits_.freeze(true, now);  // what it holds goes to nobody else meanwhile
    former.claims = other->claims;
    former.allocated = other->believed.allocated;
    leave(other->id, false, "its process registered anew", now);
  }
  if (auto left = departures_.take(peer, gpu, gpus_[gpu].uuid_text, &former.replaced); left && !former.claims) {
    former.claims = left->claims;
    former.allocated = left->allocated;
  }
  former.id = known_.find_missing(message.client_id, peer.pid, peer.start_time, gpus_[gpu].uuid_text);
  former.returns = former.id != 0;
  if (former.returns) former.tenant = known_.missing().at(former.id).tenant;
  return former;
}

Engine::Client& Engine::add_client(ConnectionId connection, const Register& message, policy::GpuId gpu, const Tenant& tenant,
                                   const Former& former, policy::Instant now) {
  const Peer& peer = connections_.at(connection).peer;
  const policy::ClientId id =
      known_.join(former.id, {peer.pid, peer.start_time, tenant.id, gpus_[gpu].uuid_text, 0, bounded(message.memory_limit), 0});
  if (Tenant* before = tenants_.find(former.tenant); before != nullptr && id == former.id) before->is_awaited_no_more();
  for (const std::string& problem : {known_.problem(), tenants_.problem()}) {
    if (!problem.empty()) warnings_.warn(problem, now, "{}", problem);
  }
  Client fresh;
  fresh.connection = connection;
  fresh.id = id;
  fresh.gpu = gpu;
  fresh.tenant = tenant.id;
  fresh.pid = peer.pid;
  fresh.uid = peer.uid;
  fresh.start_time = peer.start_time;
  fresh.program = printable(message.program);
  fresh.lines_of = tenant.kind == "process" ? fmt::format("user {}", peer.uid) : fmt::format("tenant {}", tenant.id);
  fresh.backend = static_cast<Backend>(message.backend);
  fresh.version = common_version(message.version_min, message.version_max);
  fresh.ceiling = gpus_[gpu].total;
  if (former.returns) fresh.claims.granted(bounded(message.memory.resident));
  if (former.claims) fresh.claims = *former.claims;
  if (!gpus_.uses_nvml()) fresh.claims.go_by_grants();
  fresh.believed.allocated = former.returns ? bounded(message.memory.allocated) : former.allocated;
  Client& client = clients_.add(std::move(fresh));
  if (const std::optional<GpuSample>& last = gpus_[gpu].sample;
      !former.returns && !former.claims && last && now - last->taken_at < kSampleHolds) {
    int64_t unexplained = unexplained_memory(*last);
    see_claims(client, *last, gpus_.nvml_sees_pids(), &unexplained);
  }
  client.overhead_taken = overhead_of_newcomer(client, gpus_[gpu], clients_, tenants_, settings_.policy);
  connections_.at(connection).client = id;
  return client;
}

void Engine::log_joined(const Client& client, const Tenant& tenant, const Register& message, const Former& former, policy::Instant now) {
  std::string more;
  if (!lines_.allows(client.lines_of, now, &more)) return;
  spdlog::info("client {} joined: {} (pid {}, tenant {} '{}') on {}{}{}", client.id, client.program, client.pid, tenant.kind, tenant.name,
               gpus_[client.gpu].uuid_text,
               !message.has_lock ? ""
               : former.returns  ? ", with the lock of the previous scheduler"
                                 : ", with a lock of which only it knows",
               more);
}

void Engine::record_names(const Client& client, const std::string& tenant, policy::Instant now) {
  const KnownGpu& gpu = gpus_[client.gpu];
  const std::string name = gpu.name.empty() ? gpu.uuid_text : gpu.name + ", " + gpu.uuid_text;
  policy_.steps().record(TraceNames{client.id, client.program, client.pid, client.tenant, tenant, name}, now);
}

bool Engine::wants_lock(const Register& message) { return message.wants_lock != 0 && message.has_lock == 0; }

// The policy hears of it, it hears what it is, and then what the policy decided. The event, for the trace.
policy::ClientJoined Engine::begin_client(Client& client, const Tenant& tenant, const Register& message, Former former,
                                          policy::Instant now) {
  apply(policy::ComputeLimit{tenant.id, tenant.core_limit_in_force(), tenant.core_reserved_in_force()}, now);
  policy_.apply(orders_.exceptions_of(tenant, true), now);
  // A lock that only the client speaks of it may have all the same, since before there was a scheduler, say.
  const bool proven = former.returns;
  policy::ClientJoined joined{client.id,
                              client.gpu,
                              tenant.id,
                              tenant.priority_in_force(),
                              believed_.believe(client, message.memory),
                              client.backend != Backend::kNone,
                              message.has_lock != 0,
                              wants_lock(message) && !absent_.hold().holds(),
                              tenant.gang_turns,
                              former.returns && tenant.pod.ends,
                              proven,
                              client.overhead_taken,
                              std::move(former.replaced),
                              static_cast<policy::ProcessId>(client.pid),
                              client.version >= 3 && client.backend == Backend::kVmm};
  const policy::Actions& actions = policy_.steps().step(joined, now);
  for (const policy::Action& action : actions) {
    const auto* ceiling = std::get_if<policy::SendCeiling>(&action);
    if (ceiling != nullptr && ceiling->client == client.id) client.ceiling = ceiling->ceiling;
  }
  Registered answer{client.version,
                    {},
                    client.id,
                    policy_.epoch(),
                    static_cast<uint64_t>(limits_.ledger().limit_of(client.id)),
                    static_cast<uint64_t>(tenant.memory_limit_on(gpus_[client.gpu].uuid_text)),
                    static_cast<uint64_t>(limits_.ledger().lease_of(client.id)),
                    static_cast<uint64_t>(limits_.ledger().charged_by_others(client.id)),
                    static_cast<uint64_t>(client.ceiling),
                    static_cast<uint64_t>(gpus_[client.gpu].total),
                    NVSHARE_VERSION,
                    tenant.id,
                    {},
                    static_cast<uint8_t>(settings_.skip_unchanged ? 1 : 0),
                    {}};
  std::strncpy(answer.tenant_name, tenant.name.c_str(), sizeof answer.tenant_name - 1);
  messenger_.send(client, answer);
  policy_.perform(actions);
  return joined;
}

}  // namespace nvshare::scheduler
