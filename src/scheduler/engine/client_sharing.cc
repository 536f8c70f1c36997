#include "scheduler/engine/client_sharing.h"

#include <optional>

namespace nvshare::scheduler {

constexpr uint16_t kTellsProgress = 3;  // the first version of the protocol that has Progress

void ClientSharing::mps_seen(const MpsGroups::Attached& seen, policy::Instant now) {
  for (auto& [id, client] : at_.clients.all()) {
    if (client.uid != seen.group.user) continue;
    const bool is = seen.programs.contains(client.pid);
    if (is == (client.mps.group == seen.number)) continue;
    client.mps = is ? RegisteredClient::Mps{seen.number, seen.group.name} : RegisteredClient::Mps{};
    spdlog::debug("client {} (pid {}): {} MPS of {}", id, client.pid, is ? "under" : "no longer under", seen.group.text());
    tell(client, now);
  }
}

void ClientSharing::tell(policy::Instant now) {
  for (auto& [id, client] : at_.clients.all()) tell(client, now);
}

// Programs on one MPS server run at the same time, but where turns are measured to get more done.
void ClientSharing::tell(RegisteredClient& client, policy::Instant now) {
  const Tenant* tenant = at_.tenants.find(client.tenant);
  const Sharing sharing = (tenant != nullptr ? sharing_of(tenant->sharing_in_force()) : std::nullopt).value_or(at_.settings.sharing);
  const uint64_t group = client.mps.group != 0 ? client.mps.group : sharing == Sharing::kTurns ? policy::share_group_of(client.tenant) : 0;
  const bool measured = sharing == Sharing::kAuto && client.version >= kTellsProgress;
  if (group == client.shares.group && measured == client.shares.measured) return;
  client.shares.group = group;
  client.shares.measured = measured;
  at_.policy.apply(policy::ClientShares{client.id, group, measured}, now);
}

}  // namespace nvshare::scheduler
