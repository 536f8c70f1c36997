// The engine's part in lending host memory for swapping (host_lender.h): what clients say of it, what they are told, and how much they are
// to have ready.
#include <algorithm>

#include "policy/parts.h"
#include "scheduler/engine.h"

namespace nvshare::scheduler {
namespace {

using namespace protocol;

// What clients are told to have ready comes in whole steps, so that a program that grows does not bring a message with every page.
constexpr int64_t kPrepareStepSmall = 64LL << 20;
constexpr int64_t kPrepareStepLarge = 256LL << 20;

int64_t round_up(int64_t bytes, int64_t step) { return (bytes + step - 1) / step * step; }

// Nothing beyond what the client has: where host memory is scarce, others need it.
int64_t to_step(int64_t bytes, int64_t allocated) {
  const int64_t step = bytes > kPrepareStepLarge ? kPrepareStepLarge : kPrepareStepSmall;
  return std::min(round_up(bytes, step), round_up(std::max(bytes, allocated), kPrepareStepSmall));
}

}  // namespace

HostLender::Borrower Engine::borrower(const Client& client) const {
  return {client.id, client.tenant, client.pid, client.start_time, client.gpu, gpus_[client.gpu].total};
}

void Engine::update_host_memory(policy::Instant now, bool force) {
  if (force) look_at_host_at_.reset();
  host_.update(settings_, clients_.elsewhere(), force, now);
}

void Engine::segment_made(SegmentId segment, FileDescriptor memory, policy::Instant now) {
  host_.made(segment, std::move(memory));
  update_host_memory(now, true);
}

void Engine::segment_discarded(SegmentId segment, bool still_held, policy::Instant now) {
  host_.discarded(segment, still_held, now);
  update_host_memory(now, true);
}

// ---- to clients ----

void Engine::lend(policy::ClientId client, const ArenaSegment& segment, Descriptors descriptors) {
  messenger_.send_to(client, segment, std::move(descriptors));
}

void Engine::refuse(policy::ClientId id, const ArenaRefused& message, bool urgent, HostBudget::Bound bound, policy::Instant now) {
  if (const Client* client = clients_.find(id); client != nullptr && urgent) {
    warnings_.warn_of(client->lines_of, "host memory " + std::to_string(id), now,
                      "client {} ({}): {} MiB more host memory to swap out to are not to be had, because of {}; what cannot move stays", id,
                      client->program, message.missing >> 20, describe(bound));
  }
  messenger_.send_to(id, message);
}

void Engine::ask_back(policy::ClientId client, const ArenaShrink& message) { messenger_.send_to(client, message); }

void Engine::host_room_changed(const policy::HostMemory& room, policy::Instant now) { apply(room, now); }

void Engine::not_delivered(ConnectionId connection, const Packet& packet, policy::Instant now) {
  const auto at = connections_.find(connection);
  Client* client = at != connections_.end() && at->second.client ? clients_.find(*at->second.client) : nullptr;
  const Result<MessageType> type = decode_type(packet.span());
  if (client == nullptr || !type) return;
  warnings_.warn("not delivered", now, "client {} ({}): {} could not be passed on, as the kernel takes no more descriptors; it is told so",
                 client->id, client->program, protocol::name_of(*type));
  if (*type == MessageType::kArenaSegment) {
    if (auto segment = decode<ArenaSegment>(packet.span())) host_.cannot_hand_over(client->id, segment->segment, now);
  } else if (*type == MessageType::kImported) {
    Imported failed{};
    if (auto imported = decode<Imported>(packet.span())) failed.request = imported->request;
    failed.status = static_cast<uint8_t>(ExportStatus::kFailed);
    messenger_.send(*client, failed);
  }
}

void Engine::prepare_swaps(policy::GpuId gpu) {
  if (!gpus_[gpu].prepares && !policy::may_swap(steps_.state(), gpu)) return;
  gpus_[gpu].prepares = false;
  for (const policy::SwapDemand& demand : policy::swap_demands(steps_.state(), gpu)) {
    Client* client = clients_.find(demand.client);
    if (client == nullptr || client->backend != Backend::kVmm) continue;
    const int64_t bytes = to_step(demand.bytes, bounded(client->memory.allocated));
    if (bytes > client->prepares) messenger_.send(*client, PrepareSwap{static_cast<uint64_t>(bytes)});
    client->prepares = std::max(bytes, bytes == 0 ? 0 : client->prepares);
    gpus_[gpu].prepares |= client->prepares > 0;
  }
}

}  // namespace nvshare::scheduler
