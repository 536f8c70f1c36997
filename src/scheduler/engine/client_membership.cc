#include "scheduler/engine/client_membership.h"

#include <cstring>
#include <utility>

#include "policy/parts.h"
#include "scheduler/engine/client_measures.h"

namespace nvshare::scheduler {

using namespace protocol;

namespace {

constexpr policy::Duration kSampleHolds = 5'000'000'000;  // so long a look at the GPU says something of a process that comes now

bool wants_lock(const Register& message) { return message.wants_lock != 0 && message.has_lock == 0; }

}  // namespace

Result<void> ClientMembership::join(const Newcomer& newcomer, const std::optional<Replaced>& replaced, policy::Instant now) {
  const auto& [connection, peer, gpu, message, own_id] = newcomer;
  const bool holds = at_.absent.hold().holds();
  Former former = take_former(newcomer, replaced);
  Tenant& tenant = at_.tenants.join(peer, printable(message.program), former.tenant);
  at_.housekeeping.save_tenants_soon(now);
  // What an earlier scheduler was told of the tenant.
  if (former.returns) recall_limit(tenant, at_.gpus[gpu].uuid_text, bounded(message.node_limit));
  settle_memory(tenant, at_.gpus[gpu].total);
  const int64_t node_limit = tenant.memory_limit_on(at_.gpus[gpu].uuid_text);
  const uint64_t part = part_of(tenant, peer.pid, at_.tenants.cgroups);
  if (auto ok = at_.limits.admit_reservation(gpu, tenant, at_.settings); !ok && !former.returns) {
    at_.tenants.leave(tenant.id);
    for (const policy::ClientId left : former.replaced) at_.policy.apply(policy::ClientMemoryFreed{left}, now);
    if (!holds) at_.limits.freeze(false, now);
    return ok.error();
  }

  Client& client = add_client(newcomer, tenant, former, now);
  at_.host.join(client, former.returns);
  at_.usage_totals.joins(tenant.id, gpu, {policy::view_of_tenant(at_.policy.state(), gpu, tenant.id, now)});
  at_.reports.take(client, message.memory, now);
  const MemoryLedger::Decisions decisions =
      at_.limits.join({client.id, tenant.id, gpu, bounded(message.memory_limit), node_limit, bounded(message.memory.charged),
                       static_cast<int64_t>(message.lease), false, part},
                      now);
  log_joined(client, tenant, message, former, now);
  const policy::ClientJoined joined = begin_client(client, tenant, message, std::move(former), now);
  record_names(client, tenant.name, now);
  at_.policy.steps().record(joined, now);
  at_.accounts.take_over(tenant.id, gpu, now);
  at_.limits.perform(decisions, now);
  if (!holds) at_.limits.freeze(false, now);
  at_.host.prepare_swaps(gpu);
  if (wants_lock(message) && holds) at_.absent.hold().request_lock(client.id);
  at_.absent.one_is_back(now);
  at_.sharing.tell(client, now);
  return {};
}

ClientMembership::Former ClientMembership::take_former(const Newcomer& newcomer, const std::optional<Replaced>& replaced) {
  const auto& [connection, peer, gpu, message, own_id] = newcomer;
  Former former;
  if (replaced) {
    former.claims = replaced->claims;
    former.allocated = replaced->allocated;
  }
  if (auto left = at_.departures.take(peer, gpu, at_.gpus[gpu].uuid_text, &former.replaced); left && !former.claims) {
    former.claims = left->claims;
    former.allocated = left->allocated;
  }
  former.id = at_.known.find_missing(message.client_id, peer.pid, peer.start_time, at_.gpus[gpu].uuid_text);
  former.returns = former.id != 0;
  if (former.returns) former.tenant = at_.known.missing().at(former.id).tenant;
  return former;
}

ClientMembership::Client& ClientMembership::add_client(const Newcomer& newcomer, const Tenant& tenant, const Former& former,
                                                       policy::Instant now) {
  const auto& [connection, peer, gpu, message, own_id] = newcomer;
  const policy::ClientId id =
      at_.known.join(former.id, {peer.pid, peer.start_time, tenant.id, at_.gpus[gpu].uuid_text, 0, bounded(message.memory_limit), 0});
  if (Tenant* before = at_.tenants.find(former.tenant); before != nullptr && id == former.id) before->is_awaited_no_more();
  for (const std::string& problem : {at_.known.problem(), at_.tenants.problem()}) {
    if (!problem.empty()) at_.warnings.warn(problem, now, "{}", problem);
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
  fresh.ceiling = at_.gpus[gpu].total;
  if (former.returns) fresh.claims.granted(bounded(message.memory.resident));
  if (former.claims) fresh.claims = *former.claims;
  if (!at_.gpus.uses_nvml()) fresh.claims.go_by_grants();
  fresh.believed.allocated = former.returns ? bounded(message.memory.allocated) : former.allocated;
  Client& client = at_.clients.add(std::move(fresh));
  if (const std::optional<GpuSample>& last = at_.gpus[gpu].sample;
      !former.returns && !former.claims && last && now - last->taken_at < kSampleHolds) {
    int64_t unexplained = unexplained_memory(*last);
    see_claims(client, *last, at_.gpus.nvml_sees_pids(), &unexplained);
  }
  client.overhead_taken = overhead_of_newcomer(client, at_.gpus[gpu], at_.clients, at_.tenants, at_.settings.policy);
  own_id = id;
  return client;
}

void ClientMembership::log_joined(const Client& client, const Tenant& tenant, const Register& message, const Former& former,
                                  policy::Instant now) {
  std::string more;
  if (!lines_.allows(client.lines_of, now, &more)) return;
  spdlog::info("client {} joined: {} (pid {}, tenant {} '{}') on {}{}{}", client.id, client.program, client.pid, tenant.kind, tenant.name,
               at_.gpus.name_of(client.gpu),
               !message.has_lock ? ""
               : former.returns  ? ", with the lock that it kept, or took, without a scheduler"
                                 : ", with a lock of which only it knows",
               more);
}

void ClientMembership::record_names(const Client& client, const std::string& tenant, policy::Instant now) {
  const KnownGpu& gpu = at_.gpus[client.gpu];
  const std::string name = gpu.name.empty() ? gpu.uuid_text : gpu.name + ", " + gpu.uuid_text;
  at_.policy.steps().record(TraceNames{client.id, client.program, client.pid, client.tenant, tenant, name}, now);
}

// The policy hears of it, it hears what it is, and then what the policy decided. The event, for the trace.
policy::ClientJoined ClientMembership::begin_client(Client& client, const Tenant& tenant, const Register& message, Former former,
                                                    policy::Instant now) {
  at_.policy.apply(policy::ComputeLimit{tenant.id, tenant.core_limit_in_force(), tenant.core_reserved_in_force()}, now);
  at_.policy.apply(at_.orders.exceptions_of(tenant, true), now);
  // A lock that only the client speaks of it may have all the same, since before there was a scheduler, say.
  const bool proven = former.returns;
  policy::ClientJoined joined{client.id,
                              client.gpu,
                              tenant.id,
                              tenant.priority_in_force(),
                              at_.believed.believe(client, message.memory),
                              client.backend != Backend::kNone,
                              message.has_lock != 0,
                              wants_lock(message) && !at_.absent.hold().holds(),
                              tenant.gang_turns,
                              former.returns && tenant.pod.ends,
                              proven,
                              client.overhead_taken,
                              std::move(former.replaced),
                              static_cast<policy::ProcessId>(client.pid),
                              client.version >= 3 && client.backend == Backend::kVmm};
  const policy::Actions& actions = at_.policy.steps().step(joined, now);
  for (const policy::Action& action : actions) {
    const auto* ceiling = std::get_if<policy::SendCeiling>(&action);
    if (ceiling != nullptr && ceiling->client == client.id) client.ceiling = ceiling->ceiling;
  }
  tell_client(client, tenant);
  at_.policy.perform(actions);
  return joined;
}

void ClientMembership::tell_client(const Client& client, const Tenant& tenant) {
  Registered answer{client.version,
                    {},
                    client.id,
                    at_.policy.epoch(),
                    static_cast<uint64_t>(at_.limits.ledger().limit_of(client.id)),
                    static_cast<uint64_t>(tenant.memory_limit_on(at_.gpus[client.gpu].uuid_text)),
                    static_cast<uint64_t>(at_.limits.ledger().lease_of(client.id)),
                    static_cast<uint64_t>(at_.limits.ledger().charged_by_others(client.id)),
                    static_cast<uint64_t>(client.ceiling),
                    static_cast<uint64_t>(at_.gpus[client.gpu].total),
                    NVSHARE_VERSION,
                    tenant.id,
                    {},
                    static_cast<uint8_t>(at_.settings.skip_unchanged ? 1 : 0),
                    {}};
  std::strncpy(answer.tenant_name, tenant.name.c_str(), sizeof answer.tenant_name - 1);
  at_.messenger.send(client, answer);
}

void ClientMembership::leave(policy::ClientId id, bool memory_freed, const char* why, policy::Instant now) {
  const Client* found = at_.clients.find(id);
  if (found == nullptr) return;
  const Client& client = *found;
  if (std::string more; lines_.allows(client.lines_of, now, &more)) {
    spdlog::info("client {} left: {} (pid {}): {}{}", id, client.program, client.pid, why, more);
  }
  at_.absent.hold().client_left(id);
  const bool watched = !memory_freed && at_.gpus[client.gpu].nvml && (client.seen_by_nvml || at_.gpus.nvml_sees_pids());
  // Its socket closes before its GPU memory is free; or its connection broke, and it goes on with what it has.
  const bool waits_for_end = !memory_freed && !watched && is_alive_(client.pid, client.start_time);
  if (watched) at_.departures.watch(id, {client.pid, client.gpu, now, client.believed.resident, client.most_on_gpu(), now, now});
  if (!memory_freed) {
    at_.departures.add(id, {client.pid, client.start_time, client.gpu, now, client.claims, client.believed.allocated, waits_for_end});
  }
  at_.believed.keep(client, true);
  at_.usage_totals.allocates(client.tenant, client.gpu, bounded(client.memory.allocated), 0);
  if (auto view = policy::view_of_client(at_.policy.state(), id, now)) at_.usage_totals.leaves(id, {std::move(*view)});
  const Tenant* tenant = at_.tenants.find(client.tenant);
  const bool is_last = tenant != nullptr && tenant->clients == 1;
  const std::vector<policy::Event> exceptions = is_last ? at_.orders.exceptions_of(*tenant, false) : std::vector<policy::Event>();
  at_.tenants.leave(client.tenant);
  at_.housekeeping.save_tenants_soon(now);
  const bool others_may_swap = at_.host.leave(client);
  const policy::GpuId gpu = client.gpu;
  at_.gpus[gpu].looks_due = KnownGpu::kLooksAfterLeaving;
  at_.clients.erase(id);
  if (at_.clients.all().empty()) at_.housekeeping.forget_totals(now);  // while there are some, housekeeping does it
  memory_freed ? at_.known.leave(id) : at_.known.depart(id);
  at_.policy.apply(policy::ClientLeft{id, memory_freed, watched || waits_for_end}, now);
  at_.policy.apply(exceptions, now);
  at_.exports.client_left(id);
  at_.limits.leave(id, now);
  others_may_swap ? at_.host.look(now) : at_.host.look_soon(now);
  at_.host.prepare_swaps(gpu);
}

}  // namespace nvshare::scheduler
