// The engine's view of the host's memory: lends it for swapping under one budget (host_budget.h), tells clients to have some ready, and
// tells the policy how much more could be swapped out.
#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <tuple>
#include <utility>

#include "policy/parts.h"
#include "scheduler/engine.h"
#include "scheduler/segment_maker.h"

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

// A program asks for more than it has on its GPU only because what is free lies in pieces.
int64_t most_needed(int64_t gpu_total) { return gpu_total + gpu_total / 4 + HostBudget::kSegmentMax; }

}  // namespace

std::pair<int64_t, int64_t> host_memory_by_proc(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  int64_t own = 0, lent = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) own = std::strtoll(line.c_str() + 8, nullptr, 10) * 1024;
  }
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    char* rest = nullptr;
    const unsigned long long begin = std::strtoull(line.c_str(), &rest, 16);
    const unsigned long long end = *rest == '-' ? std::strtoull(rest + 1, nullptr, 16) : begin;
    const bool is_shared = line.find(" rw-s ") != std::string::npos || line.find(" r--s ") != std::string::npos;
    if (is_shared && line.find("/memfd:nvshare-arena") != std::string::npos && end > begin) lent += static_cast<int64_t>(end - begin);
  }
  return {own, lent};
}

void Engine::join_host_budget(const Client& client, bool returns) {
  HostBudget::Member member;
  member.tenant = client.tenant;
  member.most = most_needed(gpus_[client.gpu].total);
  if (returns) std::tie(member.held_process, member.held_scheduler) = host_memory_of_(client.pid);
  const auto is_same = [&](const auto& entry) {
    const HostHolder& holder = entry.second;
    return holder.start_time != 0 && holder.pid == client.pid && holder.start_time == client.start_time && holder.gpu == client.gpu;
  };
  if (auto former = std::find_if(host_holders_.begin(), host_holders_.end(), is_same); former != host_holders_.end()) {
    member.former = former->first;
    host_holders_.erase(former);
    host_holders_[client.id] = {client.pid, client.start_time, client.gpu};
  }
  host_budget_.join(client.id, member);
}

void Engine::leave_host_budget(const Client& client) {
  host_budget_.leave(client.id);
  if (host_budget_.awaits(client.id)) {
    host_holders_[client.id] = {client.pid, client.start_time, client.gpu};
  } else {
    host_holders_.erase(client.id);
  }
}

// Memory that nobody is to have is emptied at once. What a client had when its connection ended is its process's as long as that lives: it
// may come back, and its data is there.
void Engine::discard(const HostBudget::Discard& discard, LivingProcesses* living, policy::Instant now) {
  const auto holder = host_holders_.find(discard.holder);
  const bool is_nobodys = discard.holder == 0 || holder == host_holders_.end();
  const bool is_seen = !is_nobodys && holder->second.pid != 0 && holder->second.start_time != 0;  // the process, from here
  const bool is_held = is_seen && living->has(holder->second.pid, holder->second.start_time);
  const auto at = segments_.find(discard.segment);
  if (at == segments_.end() || segment_maker_ == nullptr) {  // the process's own, or an earlier scheduler's
    return note_discarded(discard.segment, is_held, now);
  }
  FileDescriptor copy(fcntl(at->second.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return note_discarded(discard.segment, true, now);
  segment_maker_->discard(discard.segment, std::move(copy), is_nobodys || (is_seen && !is_held));
}

void Engine::update_host_memory(policy::Instant now, bool force) {
  int64_t elsewhere = 0;
  for (const auto& [id, client] : clients_) {
    if (managed_clients_ == 0) break;
    // Managed memory lies where the driver likes, not in segments.
    if (client.backend != Backend::kManaged) continue;
    elsewhere += std::min(static_cast<int64_t>(client.memory.allocated - client.memory.resident), most_needed(gpus_[client.gpu].total));
  }
  host_budget_.set_elsewhere(elsewhere);
  const int64_t used = host_budget_.used();
  if (!force && std::abs(used - host_used_then_) < kMovedStep) return;
  host_used_then_ = used;
  host_budget_.set_budget(settings_.host_memory_budget);
  host_budget_.set_kept_free(settings_.host_memory_kept_free);
  host_budget_.observe(look_at_host_());
  settle_host(now);
  const bool moved = std::exchange(moved_since_, false);
  if (auto room = host_room_.update(host_budget_.room(), moved)) apply(policy::HostMemory{*room}, now);
}

void Engine::settle_host(policy::Instant now) {
  for (;;) {
    std::vector<HostBudget::Decision> decisions = host_budget_.settle(now);
    if (decisions.empty()) return;
    LivingProcesses living(*this);  // a process that ends may leave hundreds of segments
    for (const HostBudget::Decision& decision : decisions) perform_host(decision, &living, now);
  }
}

void Engine::perform_host(const HostBudget::Decision& decision, LivingProcesses* living, policy::Instant now) {
  struct Performer {
    Engine& engine;
    LivingProcesses* living;
    policy::Instant now;
    void operator()(const HostBudget::Make& make) const {
      if (engine.segment_maker_ == nullptr) return engine.host_budget_.made(make.segment, false);
      engine.segment_maker_->make(make.segment, make.bytes);
    }
    void operator()(const HostBudget::Lend& lend) const { engine.lend(lend); }
    void operator()(const HostBudget::Refuse& refuse) const {
      const HostBudget::ClientView view = engine.host_budget_.view(refuse.client);
      if (const Client* client = engine.find(refuse.client); client != nullptr && view.urgent) {
        engine.warnings_.warn_of(
            client->lines_of, "host memory " + std::to_string(refuse.client), now,
            "client {} ({}): {} MiB more host memory to swap out to are not to be had, because of {}; what cannot move stays", client->id,
            client->program, refuse.missing >> 20, describe(view.bound));
      }
      engine.send_to(refuse.client, ArenaRefused{refuse.request, static_cast<uint64_t>(refuse.missing)});
    }
    void operator()(const HostBudget::Shrink& shrink) const {
      engine.send_to(shrink.client, ArenaShrink{shrink.shrink, static_cast<uint64_t>(shrink.bytes)});
    }
    void operator()(const HostBudget::Discard& discard) const { engine.discard(discard, living, now); }
  };
  std::visit(Performer{*this, living, now}, decision);
}

void Engine::lend(const HostBudget::Lend& lend) {
  Client* client = find(lend.client);
  if (client == nullptr) return;
  Descriptors descriptors;
  if (lend.owner == HostBudget::Owner::kScheduler) {
    auto memory = segments_.find(lend.segment);
    if (memory == segments_.end()) return host_budget_.cannot_hand_over(lend.client, lend.segment);
    Result<FileDescriptor> opened = open_again(memory->second);
    if (!opened) {
      spdlog::warn("cannot hand over host memory for swapping: {}", opened.error().text);
      return host_budget_.cannot_hand_over(lend.client, lend.segment);
    }
    descriptors.add(std::move(*opened));
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

void Engine::segment_discarded(SegmentId segment, bool still_held, policy::Instant now) {
  note_discarded(segment, still_held, now);
  update_host_memory(now, true);
}

void Engine::note_discarded(SegmentId segment, bool still_held, policy::Instant now) {
  if (still_held) return host_budget_.still_held(segment, now);
  const policy::ClientId holder = host_budget_.holder_of(segment);
  segments_.erase(segment);
  host_budget_.discarded(segment);
  if (!host_budget_.awaits(holder)) host_holders_.erase(holder);
}

void Engine::not_delivered(ConnectionId connection, const Packet& packet, policy::Instant now) {
  const auto at = connections_.find(connection);
  Client* client = at != connections_.end() && at->second.client ? find(*at->second.client) : nullptr;
  const Result<MessageType> type = decode_type(packet.span());
  if (client == nullptr || !type) return;
  warnings_.warn("not delivered", now, "client {} ({}): {} could not be passed on, as the kernel takes no more descriptors; it is told so",
                 client->id, client->program, protocol::name_of(*type));
  if (*type == MessageType::kArenaSegment) {
    if (auto segment = decode<ArenaSegment>(packet.span())) host_budget_.cannot_hand_over(client->id, segment->segment);
    settle_host(now);
  } else if (*type == MessageType::kImported) {
    Imported failed{};
    if (auto imported = decode<Imported>(packet.span())) failed.request = imported->request;
    failed.status = static_cast<uint8_t>(ExportStatus::kFailed);
    send(*client, failed);
  }
}

void Engine::prepare_swaps(policy::GpuId gpu) {
  if (!gpus_[gpu].prepares && !policy::may_swap(*state_, gpu)) return;
  gpus_[gpu].prepares = false;
  for (const policy::SwapDemand& demand : policy::swap_demands(*state_, gpu)) {
    Client* client = find(demand.client);
    if (client == nullptr || client->backend != Backend::kVmm) continue;
    const int64_t bytes = to_step(demand.bytes);
    if (bytes > client->prepares) send(*client, PrepareSwap{static_cast<uint64_t>(bytes)});
    client->prepares = std::max(bytes, bytes == 0 ? 0 : client->prepares);
    gpus_[gpu].prepares |= client->prepares > 0;
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
