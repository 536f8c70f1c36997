#include "scheduler/engine/host_desk.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "policy/parts.h"

namespace nvshare::scheduler {
namespace {

using namespace protocol;

constexpr policy::Duration kLookDelay = 20'000'000;  // after a client has left; many that leave within it share a look

// What clients are told to have ready comes in whole steps, so that a program that grows does not bring a message with every page.
constexpr int64_t kPrepareStepSmall = 64LL << 20;
constexpr int64_t kPrepareStepLarge = 256LL << 20;

int64_t round_up(int64_t bytes, int64_t step) { return (bytes + step - 1) / step * step; }

// Nothing beyond what the client has: where host memory is scarce, others need it.
int64_t to_step(int64_t bytes, int64_t allocated) {
  const int64_t step = bytes > kPrepareStepLarge ? kPrepareStepLarge : kPrepareStepSmall;
  return std::min(round_up(bytes, step), round_up(std::max(bytes, allocated), kPrepareStepSmall));
}

bool is_managed(const RegisteredClient& client) { return client.backend == Backend::kManaged; }

}  // namespace

HostLender::Borrower HostDesk::borrower(const RegisteredClient& client) const {
  return {client.id, client.tenant, client.pid, client.start_time, client.gpu, at_.gpus[client.gpu].total};
}

bool HostDesk::leave(const RegisteredClient& client) {
  const bool has_swapped = lender_.concerns(client.id) || is_managed(client);
  lender_.leave(borrower(client));
  return has_swapped;
}

// Swapped memory lies in the client's segments; what was never written lies nowhere.
int64_t HostDesk::report(RegisteredClient& client) {
  const int64_t ready = bounded(client.memory.swappable_host);
  const int64_t swapped = bounded(client.memory.allocated) - bounded(client.memory.resident);
  const int64_t used_more = lender_.report(client.id, ready, swapped - client.unwritten);
  if (is_managed(client))
    at_.clients.set_elsewhere(client, std::clamp<int64_t>(swapped, 0, HostLender::most_needed(at_.gpus[client.gpu].total)));
  return used_more;
}

void HostDesk::moved(const RegisteredClient& client, int64_t used_more, int64_t resident_before, policy::Instant now) {
  if (is_managed(client)) {
    lender_.note_moved(client.tenant, std::abs(bounded(client.memory.resident) - resident_before));
  } else {
    lender_.note_reckoned(client.tenant, used_more);
  }
  look_if_much_moved(now);
}

void HostDesk::request(const RegisteredClient& client, const ArenaRequest& message, policy::Instant now) {
  lender_.request(client.id, message, at_.settings.host_arena);
  look(now);
}

void HostDesk::returned(const RegisteredClient& client, const ArenaReturned& message, policy::Instant now) {
  lender_.returned(client.id, message, now);
  look(now);
}

void HostDesk::shrunk(const RegisteredClient& client, const ArenaShrunk& message, policy::Instant now) {
  lender_.shrunk(client.id, message, now);
  look(now);
}

void HostDesk::held(const RegisteredClient& client, const ArenaHeld& message, policy::Instant now) {
  lender_.held(client.id, message);
  look(now);
}

void HostDesk::cannot_hand_over(const RegisteredClient& client, const ArenaSegment& segment, policy::Instant now) {
  lender_.cannot_hand_over(client.id, segment.segment, now);
}

void HostDesk::made(SegmentId segment, FileDescriptor memory, policy::Instant now) {
  lender_.made(segment, std::move(memory));
  look(now);
}

void HostDesk::discarded(SegmentId segment, bool still_held, policy::Instant now) {
  lender_.discarded(segment, still_held, now);
  look(now);
}

// ---- the host ----

void HostDesk::look(policy::Instant now) {
  look_at_.reset();
  lender_.update(at_.settings, at_.clients.elsewhere(), true, now);
}

void HostDesk::look_if_much_moved(policy::Instant now) { lender_.update(at_.settings, at_.clients.elsewhere(), false, now); }

void HostDesk::look_soon(policy::Instant now) {
  if (!look_at_) look_at_ = now + kLookDelay;
}

std::optional<policy::Instant> HostDesk::next_deadline() const {
  const std::optional<policy::Instant> lenders = lender_.next_deadline();
  if (!look_at_ || !lenders) return look_at_ ? look_at_ : lenders;
  return std::min(*look_at_, *lenders);
}

void HostDesk::deadline_reached(policy::Instant now) {
  if (look_at_ && *look_at_ <= now) look(now);
  lender_.deadline_reached(now);
}

// ---- to clients ----

void HostDesk::lend(policy::ClientId client, const ArenaSegment& segment, Descriptors descriptors) {
  at_.messenger.send_to(client, segment, std::move(descriptors));
}

void HostDesk::refuse(policy::ClientId id, const ArenaRefused& message, bool urgent, HostBudget::Bound bound, policy::Instant now) {
  if (const RegisteredClient* client = at_.clients.find(id); client != nullptr && urgent) {
    at_.warnings.warn_of(client->lines_of, "host memory " + std::to_string(id), now,
                         "client {} ({}): {} MiB more host memory to swap out to are not to be had, because of {}; what cannot move stays",
                         id, client->program, message.missing >> 20, describe(bound));
  }
  at_.messenger.send_to(id, message);
}

void HostDesk::ask_back(policy::ClientId client, const ArenaShrink& message) { at_.messenger.send_to(client, message); }

void HostDesk::prepare_swaps(policy::GpuId id) {
  KnownGpu& gpu = at_.gpus[id];
  if (!gpu.prepares && !policy::may_swap(at_.policy.state(), id)) return;
  gpu.prepares = false;
  for (const policy::SwapDemand& demand : policy::swap_demands(at_.policy.state(), id)) {
    RegisteredClient* client = at_.clients.find(demand.client);
    if (client == nullptr || client->backend != Backend::kVmm) continue;
    const int64_t bytes = to_step(demand.bytes, bounded(client->memory.allocated));
    if (bytes > client->prepares) at_.messenger.send(*client, PrepareSwap{static_cast<uint64_t>(bytes)});
    client->prepares = std::max(bytes, bytes == 0 ? 0 : client->prepares);
    gpu.prepares |= client->prepares > 0;
  }
}

}  // namespace nvshare::scheduler
