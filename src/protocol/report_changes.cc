#include "protocol/report_changes.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

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
                 client.drainable, client.gpu_memory_limit, client.gang_gpus, client.mps, client.mps_group, client.keeps_memory,
                 client.host_memory_bound);
}

size_t looks_of(const TenantReport& tenant) {
  size_t looks = hash_of(tenant.name, tenant.gpu_memory_limit, tenant.priority, tenant.ends, tenant.clients, tenant.gpu_core_limit,
                         tenant.gpu_core_reserved, tenant.paused, tenant.sharing, tenant.root);
  for (const TenantMemoryReport& memory : tenant.memory) looks = looks * 31 + hash_of(memory.gpu, memory.limit, memory.over);
  for (const ComputeReport& compute : tenant.compute) looks = looks * 31 + hash_of(compute.gpu, compute.throttled);
  return looks;
}

// Clients or tenants by their ids, which are asked for mostly in the order that they are in: then none needs to be looked up.
template <typename Each>
class Finder {
 public:
  explicit Finder(std::vector<Each>& clients) : clients_(clients) {}

  Each* find(uint64_t id) {
    for (size_t ahead = 0; ahead < 2 && next_ + ahead < clients_.size(); ++ahead) {  // one of them may have left
      if (clients_[next_ + ahead].id != id) continue;
      next_ += ahead + 1;
      return &clients_[next_ - 1];
    }
    if (index_.empty()) {
      for (size_t i = 0; i < clients_.size(); ++i) index_[clients_[i].id] = i;
    }
    const auto at = index_.find(id);
    if (at == index_.end()) return nullptr;
    next_ = at->second + 1;
    return &clients_[at->second];
  }

 private:
  std::vector<Each>& clients_;
  size_t next_ = 0;
  std::unordered_map<uint64_t, size_t> index_;  // made when it is needed
};

// Those of before that are still `there`, in their states for so much longer, and the new ones in their places.
std::vector<ClientReport> with_news(std::vector<ClientReport> before, std::vector<ClientReport>& news, const std::vector<uint64_t>& there,
                                    int64_t passed_ns) {
  for (ClientReport& client : before) client.since_ns += passed_ns;
  const bool are_the_same = std::equal(before.begin(), before.end(), there.begin(), there.end(),
                                       [](const ClientReport& client, uint64_t id) { return client.id == id; });
  Finder known(before), changed(news);
  if (are_the_same) {
    for (ClientReport& client : news) {
      if (ClientReport* const same = known.find(client.id)) *same = std::move(client);
    }
    return before;
  }
  std::vector<ClientReport> clients;
  clients.reserve(there.size());
  for (const uint64_t id : there) {
    ClientReport* const old = known.find(id);
    if (ClientReport* const now = changed.find(id)) {
      clients.push_back(std::move(*now));
    } else if (old != nullptr) {
      clients.push_back(std::move(*old));
    }
  }
  return clients;
}

}  // namespace

uint64_t ChangeMarks::see(Known& known, uint64_t id, size_t looks) const {
  const auto [at, is_new] = known.try_emplace(id);
  if (is_new || at->second.looks != looks) {
    at->second.looks = looks;
    at->second.changed = changes_;
  }
  at->second.round = round_;
  return at->second.changed;
}

void ChangeMarks::mark(StatusReport& report, uint64_t changes) {
  begin(changes);
  mark_some(report, report.clients.size() + report.tenants.size());
}

void ChangeMarks::begin(uint64_t changes) {
  ++round_;
  changes_ = changes;
  at_ = 0;
}

bool ChangeMarks::mark_some(StatusReport& report, size_t most) {
  const size_t clients = report.clients.size(), all = clients + report.tenants.size(), until = std::min(all, at_ + most);
  for (; at_ < std::min(until, clients); ++at_) {
    ClientReport& client = report.clients[at_];
    client.changed = see(clients_, client.id, looks_of(client));
  }
  for (; at_ < until; ++at_) {
    TenantReport& tenant = report.tenants[at_ - clients];
    tenant.changed = see(tenants_, tenant.id, looks_of(tenant));
  }
  if (at_ < all) return false;
  forget_those_that_left(clients_, clients);
  forget_those_that_left(tenants_, report.tenants.size());
  return true;
}

// Now and then, as all are gone over: no number is another's later.
void ChangeMarks::forget_those_that_left(Known& known, size_t there) const {
  constexpr size_t kAtLeast = 64, kPart = 8;
  if (known.size() <= there + there / kPart + kAtLeast) return;
  std::erase_if(known, [&](const auto& entry) { return entry.second.round != round_; });
}

// Copies only what is new: with hundreds of clients, copies of all of them took as long as the text that is sent.
StatusReport news_since(const StatusReport& report, uint64_t since) {
  if (since == 0 || since > report.changes) return report;
  // All fields, so that one that is added is not forgotten here.
  const auto& [version, pid, runtime_dir, epoch, changes, of_since, of_there, uptime_ns, nvml, host_memory_available, host_memory_budget,
               host_memory_reserved, host_memory_used, host_memory_bound, switch_time_mode, gpus, tenants, clients, bounds, bypasses, mps,
               own] = report;
  std::vector<uint64_t> there;
  there.reserve(clients.size());
  for (const ClientReport& client : clients) there.push_back(client.id);
  const auto new_ones = [since](const auto& all) {
    std::remove_cvref_t<decltype(all)> some;
    std::copy_if(all.begin(), all.end(), std::back_inserter(some), [since](const auto& each) { return each.changed > since; });
    return some;
  };
  return {version,
          pid,
          runtime_dir,
          epoch,
          changes,
          since,
          std::move(there),
          uptime_ns,
          nvml,
          host_memory_available,
          host_memory_budget,
          host_memory_reserved,
          host_memory_used,
          host_memory_bound,
          switch_time_mode,
          gpus,
          new_ones(tenants),
          new_ones(clients),
          {{}, bounds.connections, bounds.connections_refused, bounds.reads_paused},
          bypasses,
          mps,
          own};
}

bool complete(StatusReport& news, StatusReport before) {
  if (news.since == 0) return true;
  if (news.epoch != before.epoch || news.pid != before.pid || news.since != before.changes) return false;
  for (ClientReport& client : news.clients) client.changed = news.changes;
  for (TenantReport& tenant : news.tenants) tenant.changed = news.changes;
  news.clients = with_news(std::move(before.clients), news.clients, news.there, news.uptime_ns - before.uptime_ns);
  Finder known(before.tenants);
  std::vector<TenantReport> came;
  for (TenantReport& tenant : news.tenants) {
    TenantReport* const same = known.find(tenant.id);
    same == nullptr ? came.push_back(std::move(tenant)) : void(*same = std::move(tenant));
  }
  news.tenants = std::move(before.tenants);
  std::move(came.begin(), came.end(), std::back_inserter(news.tenants));
  if (news.bounds.values.empty()) news.bounds.values = std::move(before.bounds.values);
  news.since = 0;
  news.there.clear();
  return true;
}

}  // namespace nvshare::protocol::admin
