#include "scheduler/memory/memory_limits.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <variant>
#include <vector>

#include "base/amount.h"
#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {
namespace {

using namespace protocol;

constexpr size_t kUsersNamed = 4;

Amount shown(int64_t bytes) { return amount(static_cast<uint64_t>(std::max<int64_t>(bytes, 0))); }
int64_t mib_up(int64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }

}  // namespace

// ---- from clients ----

void MemoryLimits::ask(const RegisteredClient& client, const AskHeadroom& message, policy::Instant now) {
  perform(ledger_.ask(client.id, message.request, static_cast<int64_t>(message.bytes), static_cast<int64_t>(message.returned), now), now);
  note_over_limit(client.tenant, client.gpu);
}

void MemoryLimits::returned(const RegisteredClient& client, const HeadroomReturned& message, policy::Instant now) {
  perform(ledger_.returned(client.id, message.recall, static_cast<int64_t>(message.bytes), static_cast<int64_t>(message.charged), now),
          now);
  note_over_limit(client.tenant, client.gpu);
}

void MemoryLimits::taken(const RegisteredClient& client, const HeadroomTaken& message, policy::Instant now) {
  const MemoryLedger::Decisions decisions = ledger_.taken(client.id, static_cast<int64_t>(message.bytes), now);
  keep_lease(client.id);
  perform(decisions, now);
  note_over_limit(client.tenant, client.gpu);
}

void MemoryLimits::report(const RegisteredClient& client, int64_t charged, policy::Instant now) {
  perform(ledger_.report(client.id, charged, now), now);
  note_over_limit(client.tenant, client.gpu);
}

// ---- members ----

MemoryLedger::Decisions MemoryLimits::join(const MemoryLedger::Member& member, policy::Instant now) {
  MemoryLedger::Decisions decisions = ledger_.join(member, now);
  if (!member.absent) keep_lease(member.client);
  return decisions;
}

void MemoryLimits::set_limit(policy::TenantId tenant, policy::GpuId gpu, int64_t limit, policy::Instant now) {
  perform(ledger_.set_limit(tenant, gpu, limit, now), now);
  note_over_limit(tenant, gpu);
}

void MemoryLimits::deadline_reached(policy::Instant now) {
  if (const auto due = ledger_.next_deadline(); due && *due <= now) perform(ledger_.tick(now), now);
}

// A limit is a ceiling: it takes nothing from anybody. Only what the node reserved for a run counts here: where its programs are, and on
// the single GPU that it will use from its start to its end.
Result<void> MemoryLimits::admit_reservation(policy::GpuId gpu, const Tenant& tenant, const Settings& settings) const {
  if (tenant.gpu_memory_reserved == 0) return {};
  const KnownGpu& known = at_.gpus[gpu];
  if (tenant.has_reserved_on(known.uuid_text)) return {};
  std::set<policy::TenantId> there;
  for (const MemoryLedger::View& view : ledger_.view()) {
    if (view.gpu == gpu) there.insert(view.tenant);
  }
  if (there.contains(tenant.id)) return {};  // another of its programs is there already
  int64_t others = 0;
  for (const auto& [key, other] : at_.tenants.all()) {
    const bool holds =
        there.contains(other.id) || (other.has_reserved_on(known.uuid_text) && start_time_of(other.root) == other.root_start_time);
    if (holds && other.id != tenant.id) others += other.gpu_memory_reserved;
  }
  const int64_t total = known.total > 0 ? known.total : std::min(known.real_total, settings.gpu_physical_memory.value_or(INT64_MAX));
  const double ratio = settings.gpu_memory_oversub_ratio;
  const auto bound = static_cast<int64_t>(ratio * static_cast<double>(total));
  if (tenant.gpu_memory_reserved + others <= bound) return {};
  return error_format("no room for a reservation of %s on %s; accepted: up to %s (others have %s; %s is %g, of %s)",
                      shown(tenant.gpu_memory_reserved).text, at_.gpus.name_of(gpu).c_str(), shown(bound - others).text, shown(others).text,
                      variable_of("gpu_memory_oversub_ratio").c_str(), ratio, shown(total).text);
}

// ---- to clients ----

void MemoryLimits::perform(const MemoryLedger::Decisions& decisions, policy::Instant now) {
  struct Performer {
    MemoryLimits& limits;
    const policy::Instant now;
    void operator()(const MemoryLedger::Grant& grant) const {
      limits.keep_lease(grant.client);
      if (const RegisteredClient* client = grant.granted ? nullptr : limits.at_.clients.find(grant.client))
        limits.note_refusal(*client, grant.asked, now);
      const auto limit = static_cast<uint64_t>(limits.ledger_.limit_of(grant.client));
      const auto others = static_cast<uint64_t>(limits.ledger_.charged_by_others(grant.client));
      limits.at_.messenger.send_to(grant.client,
                                   Headroom{grant.request, static_cast<uint64_t>(grant.bytes), limit, others, grant.granted, {}});
    }
    void operator()(const MemoryLedger::Recall& recall) const {
      limits.at_.messenger.send_to(recall.client, RecallHeadroom{recall.recall, static_cast<uint64_t>(recall.bytes)});
    }
    void operator()(const MemoryLedger::Tell& tell) const {
      if (const RegisteredClient* client = limits.at_.clients.find(tell.client)) limits.send_limit(*client);
    }
  };
  for (const MemoryLedger::Decision& decision : decisions) std::visit(Performer{*this, now}, decision);
}

void MemoryLimits::send_limit(const RegisteredClient& client) const {
  const Tenant* tenant = at_.tenants.find(client.tenant);
  const auto node_limit = static_cast<uint64_t>(tenant != nullptr ? tenant->memory_limit_on(at_.gpus[client.gpu].uuid_text) : 0);
  at_.messenger.send(client,
                     UpdateLimit{static_cast<uint64_t>(ledger_.limit_of(client.id)), node_limit, static_cast<uint64_t>(client.ceiling),
                                 static_cast<uint64_t>(ledger_.charged_by_others(client.id))});
}

// ---- what people see ----

// Says once when a tenant has more than its limit, and once when it no longer has.
void MemoryLimits::note_over_limit(policy::TenantId id, policy::GpuId gpu) {
  const std::optional<MemoryLedger::View> view = ledger_.view_of(id, gpu);
  if (!view || !view->over()) {
    over_limit_.erase({id, gpu});
  } else if (over_limit_.insert({id, gpu}).second) {
    const Tenant* tenant = at_.tenants.find(id);
    spdlog::warn("tenant {} '{}' has {} MiB of GPU memory on {}, over its limit of {} MiB: it keeps them, and gets no more", id,
                 tenant != nullptr ? tenant->name : "", view->charged >> 20, at_.gpus.name_of(gpu), view->limit >> 20);
  }
}

// The tenant's programs there, those with most first.
std::string MemoryLimits::users_of(policy::TenantId tenant, policy::GpuId gpu) const {
  std::vector<std::pair<int64_t, const RegisteredClient*>> users;
  for (const auto& [id, client] : at_.clients.all()) {
    if (client.tenant == tenant && client.gpu == gpu) users.emplace_back(ledger_.view_of(id).charged, &client);
  }
  std::sort(users.begin(), users.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (size_t i = 0; i < std::min(users.size(), kUsersNamed); ++i) {
    const RegisteredClient& client = *users[i].second;
    text += fmt::format("{}{} MiB by {} ({})", text.empty() ? "" : ", ", mib_up(users[i].first), client.program, client.pid);
  }
  if (users.size() > kUsersNamed) text += fmt::format(" and {} more", users.size() - kUsersNamed);
  return text;
}

void MemoryLimits::note_refusal(const RegisteredClient& client, int64_t bytes, policy::Instant now) {
  const std::string pod = at_.tenants.pod_of(client.tenant);
  if (pod.empty()) return;
  const int64_t limit = ledger_.limit_of(client.id);
  at_.notices.add(pod, "GpuOutOfMemory",
                  fmt::format("{} ({}) asked for {} MiB of GPU memory on {} and got out of memory: of the limit of {} MiB in use are {}. "
                              "Programs' allocations count, their CUDA contexts do not",
                              client.program, client.pid, mib_up(bytes), at_.gpus.name_of(client.gpu), limit >> 20,
                              users_of(client.tenant, client.gpu)),
                  now);
}

}  // namespace nvshare::scheduler
