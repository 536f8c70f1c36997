// The engine's view of the host's memory: lends it for swapping under one budget (host_budget.h), tells clients to have some ready, and
// tells the policy how much more could be swapped out.
#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "scheduler/engine.h"

namespace nvshare::scheduler {
namespace {

using namespace protocol;

constexpr int64_t kMovedStep = 64LL << 20;
// What clients are told to have ready comes in whole steps, so that a program that grows does not bring a message with every page.
constexpr int64_t kPrepareStepSmall = 64LL << 20;
constexpr int64_t kPrepareStepLarge = 256LL << 20;

int64_t to_step(int64_t bytes) {
  const int64_t step = bytes > kPrepareStepLarge ? kPrepareStepLarge : kPrepareStepSmall;
  return (bytes + step - 1) / step * step;
}

}  // namespace

void Engine::update_host_memory(policy::Instant now, bool force) {
  int64_t elsewhere = 0;
  for (const auto& [id, client] : clients_) {
    // Managed memory lies where the driver likes, not in segments.
    if (client.backend == Backend::kManaged) elsewhere += static_cast<int64_t>(client.memory.allocated - client.memory.resident);
  }
  host_budget_.set_elsewhere(elsewhere);
  const int64_t used = host_budget_.view().used;
  if (!force && std::abs(used - host_used_then_) < kMovedStep) return;
  host_used_then_ = used;
  host_budget_.set_budget(settings_.host_memory_budget);
  host_budget_.observe(look_at_host_());
  settle_host(now);
  const bool moved = std::exchange(moved_since_, false);
  if (auto room = host_room_.update(host_budget_.room(), moved)) apply(policy::HostMemory{*room}, now);
}

void Engine::settle_host(policy::Instant now) {
  for (;;) {
    std::vector<HostBudget::Decision> decisions = host_budget_.settle(now);
    if (decisions.empty()) return;
    for (const HostBudget::Decision& decision : decisions) perform_host(decision, now);
  }
}

void Engine::perform_host(const HostBudget::Decision& decision, policy::Instant now) {
  struct Performer {
    Engine& engine;
    policy::Instant now;
    void operator()(const HostBudget::Make& make) const {
      if (engine.segment_maker_ == nullptr) return engine.host_budget_.made(make.segment, false);
      engine.segment_maker_->make(make.segment, make.bytes);
    }
    void operator()(const HostBudget::Lend& lend) const { engine.lend(lend); }
    void operator()(const HostBudget::Refuse& refuse) const {
      const HostBudget::ClientView view = engine.host_budget_.view(refuse.client);
      if (const Client* client = engine.find(refuse.client); client != nullptr && view.urgent) {
        engine.warnings_.warn(
            "host memory " + std::to_string(refuse.client), now,
            "client {} ({}): {} MiB more host memory to swap out to are not to be had, because of {}; what cannot move stays", client->id,
            client->program, refuse.missing >> 20, describe(view.bound));
      }
      engine.send_to(refuse.client, ArenaRefused{refuse.request, static_cast<uint64_t>(refuse.missing)});
    }
    void operator()(const HostBudget::Shrink& shrink) const {
      engine.send_to(shrink.client, ArenaShrink{shrink.shrink, static_cast<uint64_t>(shrink.bytes)});
    }
    void operator()(const HostBudget::Discard& discard) const {
      auto at = engine.segments_.find(discard.segment);
      if (at == engine.segments_.end() || engine.segment_maker_ == nullptr) return engine.host_budget_.discarded(discard.segment);
      engine.segment_maker_->discard(discard.segment, std::move(at->second));
      engine.segments_.erase(at);
    }
  };
  std::visit(Performer{*this, now}, decision);
}

void Engine::lend(const HostBudget::Lend& lend) {
  Client* client = find(lend.client);
  if (client == nullptr) return;
  Descriptors descriptors;
  if (lend.owner == HostBudget::Owner::kScheduler) {
    auto memory = segments_.find(lend.segment);
    FileDescriptor copy(memory != segments_.end() ? fcntl(memory->second.get(), F_DUPFD_CLOEXEC, 0) : -1);
    if (!copy) return host_budget_.cannot_hand_over(lend.client, lend.segment);
    descriptors.add(std::move(copy));
  }
  send(*client, ArenaSegment{lend.segment, static_cast<uint64_t>(lend.bytes), static_cast<uint8_t>(lend.owner), {}},
       std::move(descriptors));
}

void Engine::segment_made(SegmentId segment, FileDescriptor memory, policy::Instant now) {
  const bool there = static_cast<bool>(memory);
  if (there) segments_[segment] = std::move(memory);
  host_budget_.made(segment, there);
  update_host_memory(now, true);
}

void Engine::segment_discarded(SegmentId segment, policy::Instant now) {
  host_budget_.discarded(segment);
  update_host_memory(now, true);
}

void Engine::prepare_swaps() {
  for (const policy::SwapDemand& demand : policy::swap_demands(*state_)) {
    Client* client = find(demand.client);
    if (client == nullptr || client->backend != Backend::kVmm) continue;
    const int64_t bytes = to_step(demand.bytes);
    if (bytes > client->prepares) send(*client, PrepareSwap{static_cast<uint64_t>(bytes)});
    client->prepares = std::max(bytes, bytes == 0 ? 0 : client->prepares);
  }
}

HostBudget::Owner Engine::owner_wanted(ArenaOwner owner) const {
  switch (settings_.host_arena) {
    case HostArena::kProcess:
      return HostBudget::Owner::kProcess;
    case HostArena::kScheduler:
      return HostBudget::Owner::kScheduler;
    case HostArena::kAuto:
      break;
  }
  return owner == ArenaOwner::kScheduler ? HostBudget::Owner::kScheduler : HostBudget::Owner::kProcess;
}

// False: the message was bad, and the connection is no more.
bool Engine::dispatch_arena(Client& client, MessageType type, std::span<const std::byte> packet, policy::Instant now) {
  const policy::ClientId id = client.id;
  const ConnectionId connection = client.connection;
  auto with = [&]<typename Payload>(Payload*, auto handle) {
    Result<Payload> message = decode<Payload>(packet);
    if (message) {
      handle(*message);
      update_host_memory(now, true);
    } else {
      refuse(connection, std::string("bad message: ") + message.error().text, now);
    }
    return static_cast<bool>(message);
  };
  if (type == MessageType::kArenaRequest) {
    return with(static_cast<ArenaRequest*>(nullptr), [&](const ArenaRequest& message) {
      host_budget_.request(id, message.request, static_cast<int64_t>(message.total), owner_wanted(static_cast<ArenaOwner>(message.owner)),
                           message.urgent != 0);
    });
  }
  if (type == MessageType::kArenaReturned) {
    return with(static_cast<ArenaReturned*>(nullptr),
                [&](const ArenaReturned& message) { host_budget_.returned(id, message.segment, now); });
  }
  if (type == MessageType::kArenaShrunk) {
    return with(static_cast<ArenaShrunk*>(nullptr),
                [&](const ArenaShrunk& message) { host_budget_.shrunk(id, message.shrink, static_cast<int64_t>(message.bytes), now); });
  }
  return with(static_cast<ArenaHeld*>(nullptr), [&](const ArenaHeld& message) {
    const bool own = static_cast<ArenaOwner>(message.owner) == ArenaOwner::kProcess;
    host_budget_.held(id, message.segment, static_cast<int64_t>(message.bytes),
                      own ? HostBudget::Owner::kProcess : HostBudget::Owner::kScheduler);
  });
}

void Engine::report_host(admin::StatusReport* report) const {
  const HostBudget::View view = host_budget_.view();
  report->host_memory_available = host_room_.room();
  report->host_memory_budget = view.budget;
  report->host_memory_reserved = view.reserved;
  report->host_memory_used = view.used;
  report->host_memory_bound = describe(view.bound);
}

void Engine::report_host(policy::ClientId client, admin::ClientReport* report) const {
  const HostBudget::ClientView view = host_budget_.view(client);
  report->host_memory_process = view.lent_process;
  report->host_memory_scheduler = view.lent_scheduler;
  if (!view.urgent || view.missing <= 0) return;
  report->host_memory_missing = view.missing;
  report->host_memory_bound = describe(view.bound);
}

}  // namespace nvshare::scheduler
