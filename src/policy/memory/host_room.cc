// Host memory for evictions. Part of it is kept for tenants that use little (docs/adr/0015), so that how much there is depends on whose
// memory moves. What is begun has to find its room in whatever order the clients ask for it.
#include <limits>

#include "policy/memory/room.h"

namespace nvshare::policy {
namespace {

struct UnderWay {
  Bytes all = 0;
  Movable of_tenants;

  Bytes of(TenantId tenant) const {
    const auto at = of_tenants.find(tenant);
    return at != of_tenants.end() ? at->second : 0;
  }
};

Bytes all_under_way(const State& state) {
  Bytes sum = 0;
  for (const auto& [id, gpu] : state.gpus) sum += evicting_bytes(gpu);
  return sum;
}

UnderWay under_way(const State& state) {
  UnderWay under;
  for (const auto& [id, gpu] : state.gpus) {
    if (evicting_bytes(gpu) == 0) continue;
    for (const auto& [client_id, client] : gpu.unsettled) {
      if (const Bytes bytes = evicting_bytes(*client); bytes > 0) under.of_tenants[client->tenant] += bytes;
    }
  }
  for (const auto& [tenant, bytes] : under.of_tenants) under.all += bytes;
  return under;
}

// Part of a piece does not leave, unless it is all there is.
Bytes in_pieces(Bytes room, Bytes movable) {
  const Bytes bytes = std::min(room, movable);
  return bytes < std::min(movable, kPieceMost) ? 0 : bytes;
}

}  // namespace

Bytes host_left_for(Bytes used, Bytes free, Bytes kept, Bytes share) {
  const Bytes within = std::min(share - used, free - std::min(kept / 2, (free + used) / 2));
  return std::clamp<Bytes>(std::max(within, free - kept), 0, std::max<Bytes>(free, 0));
}

bool is_beyond_share(const State& state, const Client& client) {
  return state.host && state.host->kept > 0 && state.host->used_by(client.tenant) >= state.host->share;
}

Bytes host_room(const State& state, Bytes more) {
  if (!state.host) return std::numeric_limits<Bytes>::max();
  const HostRoom& host = *state.host;
  const Bytes room = host.kept > 0 ? std::min(host.available, host.free - host.kept) : host.available;
  return std::max<Bytes>(room + more - all_under_way(state), 0);
}

Bytes host_room(const State& state, const Client& client) {
  if (!state.host || state.host->kept == 0) return host_room(state);
  const HostRoom& host = *state.host;
  if (host_left_for(host.used_by(client.tenant), host.free - all_under_way(state), host.kept, host.share) == 0)
    return 0;  // as in most cases
  const UnderWay under = under_way(state);
  const Bytes free = host.free - under.all;
  Bytes room = std::min(host_left_for(host.used_by(client.tenant) + under.of(client.tenant), free, host.kept, host.share),
                        host.available - under.all);
  // Not what others have begun to move for.
  for (const auto& [tenant, bytes] : under.of_tenants) {
    if (tenant == client.tenant) continue;
    room = std::min(room, free - (host.used_by(tenant) + bytes > host.share ? host.kept : host.kept / 2));
  }
  return std::max<Bytes>(room, 0);
}

// First those beyond their share, who get nothing once what is kept is begun; then either those within it, as far as that goes, or one
// alone.
Bytes host_room(const State& state, const Movable& movable, Bytes more) {
  if (!state.host) return std::numeric_limits<Bytes>::max();
  const HostRoom& host = *state.host;
  const UnderWay under = under_way(state);
  const Bytes at_most = host.available + more - under.all;
  if (host.kept == 0) return at_most;
  const auto used_by = [&](TenantId tenant) { return host.used_by(tenant) + under.of(tenant); };
  const Bytes free = host.free + more - under.all;
  Bytes beyond = 0, within = 0;
  for (const auto& [tenant, bytes] : movable) (used_by(tenant) >= host.share ? beyond : within) += bytes;
  const Bytes first = std::clamp<Bytes>(free - host.kept, 0, beyond);
  const Bytes rest = free - first;
  Bytes of_shares = 0, of_one = 0;
  for (const auto& [tenant, bytes] : movable) {
    const Bytes used = used_by(tenant);
    if (used >= host.share) continue;
    of_shares += in_pieces(host.share - used, bytes);
    of_one = std::max(of_one, in_pieces(host_left_for(used, rest, host.kept, host.share), bytes));
  }
  const Bytes then = std::max({std::min(within, rest - host.kept), std::min(of_shares, rest - host.kept / 2), of_one, Bytes{0}});
  return std::min(first + then, at_most);
}

}  // namespace nvshare::policy
