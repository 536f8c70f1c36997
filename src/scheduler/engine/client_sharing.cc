#include "scheduler/engine/client_sharing.h"

#include <algorithm>
#include <optional>

#include "policy/parts.h"

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
  set(client, group, sharing == Sharing::kAuto && client.version >= kTellsProgress, now);
}

void ClientSharing::end(policy::Instant now) {
  for (auto& [id, client] : at_.clients.all()) set(client, 0, false, now);
}

bool ClientSharing::hands_over(policy::Instant now) const {
  return std::ranges::any_of(at_.clients.all(), [&](const auto& entry) {
    const std::optional<policy::GpuView> view = policy::view_of_client(at_.policy.state(), entry.first, now);
    return view && std::ranges::any_of(view->clients, [](const policy::ClientView& client) {
             return client.state == policy::ClientState::kLoading || client.state == policy::ClientState::kDropping;
           });
  });
}

void ClientSharing::set(RegisteredClient& client, uint64_t group, bool measured, policy::Instant now) {
  if (group == client.shares.group && measured == client.shares.measured) return;
  client.shares.group = group;
  client.shares.measured = measured;
  at_.policy.apply(policy::ClientShares{client.id, group, measured}, now);
}

}  // namespace nvshare::scheduler
