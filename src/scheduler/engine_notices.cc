// What pods' owners are told of: they see their pods' events (`kubectl describe pod`), not the node's logs and status.
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/engine.h"

namespace nvshare::scheduler {
namespace {

constexpr size_t kUsersNamed = 4;

int64_t mib_up(int64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }

}  // namespace

void Engine::note_bypass(const BypassWatch::Process& process, policy::GpuId gpu, policy::Instant now) {
  if (process.pod.empty()) return;
  notices_.add(process.pod, "NotShared",
               fmt::format("process {} ({}) uses {} past nvshare, {} MiB of its memory: no limit holds for it, and it takes no turns. Its "
                           "container has no libnvshare.so, or the program goes around it",
                           process.pid, process.program, gpus_[gpu].uuid_text, process.used >> 20),
               now);
}

// The tenant's programs there, those with most first.
std::string Engine::users_of(policy::TenantId tenant, policy::GpuId gpu) const {
  std::vector<std::pair<int64_t, const Client*>> users;
  for (const auto& [id, client] : clients_.all()) {
    if (client.tenant == tenant && client.gpu == gpu) users.emplace_back(ledger_.charged_by(id), &client);
  }
  std::sort(users.begin(), users.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (size_t i = 0; i < std::min(users.size(), kUsersNamed); ++i) {
    const Client& client = *users[i].second;
    text += fmt::format("{}{} MiB by {} ({})", text.empty() ? "" : ", ", mib_up(users[i].first), client.program, client.pid);
  }
  if (users.size() > kUsersNamed) text += fmt::format(" and {} more", users.size() - kUsersNamed);
  return text;
}

void Engine::note_refusal(const Client& client, int64_t bytes, policy::Instant now) {
  const std::string pod = tenants_.pod_of(client.tenant);
  if (pod.empty()) return;
  const int64_t limit = ledger_.limit_of(client.id);
  notices_.add(
      pod, "GpuOutOfMemory",
      fmt::format("{} ({}) asked for {} MiB of GPU memory on {} and got out of memory: of the limit of {} MiB in use are {}. "
                  "Programs' allocations count, their CUDA contexts do not",
                  client.program, client.pid, mib_up(bytes), gpus_[client.gpu].uuid_text, limit >> 20, users_of(client.tenant, client.gpu)),
      now);
}

}  // namespace nvshare::scheduler
