#include "protocol/report_changes.h"

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

namespace nvshare::protocol::admin {
namespace {

template <typename... Parts>
size_t hash_of(const Parts&... parts) {
  size_t all = 0;
  ((all = all * 1'000'003 + std::hash<Parts>()(parts)), ...);
  return all;
}

size_t looks_of(const ClientReport& client) {
  return hash_of(client.state, client.waiting_for, client.tenant, client.turns, client.drops, client.unanswered, client.failed_drains,
                 client.drainable, client.gpu_memory_limit, client.gang_gpus, client.mps, client.keeps_memory, client.host_memory_bound);
}

size_t looks_of(const TenantReport& tenant) {
  size_t looks = hash_of(tenant.name, tenant.gpu_memory_limit, tenant.priority, tenant.ends, tenant.clients, tenant.gpu_core_limit,
                         tenant.gpu_core_reserved, tenant.paused, tenant.sharing, tenant.root);
  for (const TenantMemoryReport& memory : tenant.memory) looks = looks * 31 + hash_of(memory.gpu, memory.limit, memory.over);
  for (const ComputeReport& compute : tenant.compute) looks = looks * 31 + hash_of(compute.gpu, compute.throttled);
  return looks;
}

}  // namespace

uint64_t ChangeMarks::see(Known& known, uint64_t id, size_t looks, uint64_t changes) const {
  const auto [at, is_new] = known.try_emplace(id);
  if (is_new || at->second.looks != looks) {
    at->second.looks = looks;
    at->second.changed = changes;
  }
  at->second.round = round_;
  return at->second.changed;
}

void ChangeMarks::mark(StatusReport& report, uint64_t changes) {
  ++round_;
  for (ClientReport& client : report.clients) client.changed = see(clients_, client.id, looks_of(client), changes);
  for (TenantReport& tenant : report.tenants) tenant.changed = see(tenants_, tenant.id, looks_of(tenant), changes);
  const auto has_left = [&](const auto& entry) { return entry.second.round != round_; };
  std::erase_if(clients_, has_left);
  std::erase_if(tenants_, has_left);
}

StatusReport news_since(const StatusReport& report, uint64_t since) {
  StatusReport news = report;
  if (since == 0 || since > report.changes) return news;
  news.since = since;
  for (const ClientReport& client : report.clients) news.there.push_back(client.id);
  std::erase_if(news.clients, [&](const ClientReport& client) { return client.changed <= since; });
  std::erase_if(news.tenants, [&](const TenantReport& tenant) { return tenant.changed <= since; });
  return news;
}

bool complete(StatusReport& news, const StatusReport& before) {
  if (news.since == 0) return true;
  if (news.epoch != before.epoch || news.pid != before.pid || news.since != before.changes) return false;
  std::unordered_map<uint64_t, const ClientReport*> known;
  for (const ClientReport& client : before.clients) known[client.id] = &client;
  std::unordered_map<uint64_t, ClientReport*> changed;
  for (ClientReport& client : news.clients) changed[client.id] = &client;
  std::vector<ClientReport> clients;
  clients.reserve(news.there.size());
  for (const uint64_t id : news.there) {
    if (const auto at = changed.find(id); at != changed.end()) {
      clients.push_back(std::move(*at->second));
    } else if (const auto old = known.find(id); old != known.end()) {
      clients.push_back(*old->second);
      clients.back().since_ns += news.uptime_ns - before.uptime_ns;
    }
  }
  news.clients = std::move(clients);
  std::vector<TenantReport> tenants = before.tenants;
  for (TenantReport& tenant : news.tenants) {
    const auto same = std::find_if(tenants.begin(), tenants.end(), [&](const TenantReport& each) { return each.id == tenant.id; });
    same == tenants.end() ? tenants.push_back(std::move(tenant)) : void(*same = std::move(tenant));
  }
  news.tenants = std::move(tenants);
  news.since = 0;
  news.there.clear();
  return true;
}

}  // namespace nvshare::protocol::admin
