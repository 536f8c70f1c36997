#include "scheduler/engine/visible_changes.h"

#include <algorithm>

namespace nvshare::scheduler {
namespace {

struct OfEvents {
  bool operator()(const policy::GpuAppeared&) const { return true; }
  bool operator()(const policy::ForeignMemory&) const { return false; }
  bool operator()(const policy::HostMemory&) const { return false; }
  bool operator()(const policy::ClientJoined&) const { return true; }
  bool operator()(const policy::ClientOverhead&) const { return false; }
  bool operator()(const policy::ClientLeft&) const { return true; }
  bool operator()(const policy::ClientMemoryFreed&) const { return true; }
  bool operator()(const policy::MemoryHeld&) const { return false; }
  bool operator()(const policy::LockRequested&) const { return true; }
  bool operator()(const policy::LockReleased&) const { return true; }
  bool operator()(const policy::LockPaused&) const { return false; }  // milliseconds beside compute limits; so the next
  bool operator()(const policy::LockResumed&) const { return false; }
  bool operator()(const policy::Drained&) const { return true; }
  bool operator()(const policy::EndsSoon&) const { return false; }  // what comes of it is
  bool operator()(const policy::DrainFailed&) const { return true; }
  bool operator()(const policy::MemoryChanged&) const { return false; }
  bool operator()(const policy::SwapProgressed& event) const { return event.finished; }
  bool operator()(const policy::MemoryBelieved&) const { return false; }
  bool operator()(const policy::ConfigChanged&) const { return true; }
  bool operator()(const policy::ComputeLimit&) const { return true; }
  bool operator()(const policy::TenantPriority&) const { return true; }
  bool operator()(const policy::TenantEnds&) const { return true; }
  bool operator()(const policy::TenantSuspended&) const { return true; }
  bool operator()(const policy::TenantTurns&) const { return true; }
  bool operator()(const policy::ClientShares&) const { return false; }
  bool operator()(const policy::ClientProgressed&) const { return false; }  // what it decides is noted
  bool operator()(const policy::AccountKept&) const { return false; }
  bool operator()(const policy::Tick&) const { return false; }
};

struct OfActions {
  bool operator()(const policy::SendLock&) const { return true; }
  bool operator()(const policy::SendDrop&) const { return true; }
  bool operator()(const policy::SendKeep&) const { return true; }
  bool operator()(const policy::SendEvict&) const { return true; }
  bool operator()(const policy::SendWait&) const { return true; }
  bool operator()(const policy::SendMemory&) const { return true; }
  bool operator()(const policy::SendContention&) const { return false; }
  bool operator()(const policy::SendAskProgress&) const { return false; }
  bool operator()(const policy::SendCeiling&) const { return false; }
  bool operator()(const policy::SendPrefetch&) const { return false; }  // what comes of it is
  bool operator()(const policy::Note& note) const { return note.level == policy::Note::Level::kInfo; }
};

}  // namespace

bool is_visible(const policy::Event& event) { return std::visit(OfEvents{}, event); }

bool is_visible(const policy::Action& action) { return std::visit(OfActions{}, action); }

bool is_visible(const policy::Event& event, const policy::Actions& actions) {
  return is_visible(event) || std::any_of(actions.begin(), actions.end(), [](const policy::Action& action) { return is_visible(action); });
}

void ChangesOfGpus::note(const policy::Event& event, const policy::Actions& actions, uint64_t number) {
  if (const auto* joined = std::get_if<policy::ClientJoined>(&event)) {
    forget(joined->client);
    clients_[joined->client] = {joined->gpu, joined->tenant};
    tenants_[joined->tenant].push_back(joined->gpu);
  }
  const auto note_one = [&](const auto& what) {
    if constexpr (requires { what.client; }) note_of(what.client, number);
    if constexpr (requires { what.gpu; }) note_on(what.gpu, number);
    constexpr bool is_of_client = requires { what.client; };
    constexpr bool is_of_tenant = requires { what.tenant; };
    constexpr bool is_of_all = requires { what.config; };
    if constexpr (is_of_all) note_on_all(number);
    if constexpr (is_of_tenant && !is_of_client) note_of_tenant(what.tenant, number);
  };
  std::visit(note_one, event);
  const auto note_action = [&](const auto& action) {
    if constexpr (requires { action.gpu; }) {
      if (action.gpu) note_on(*action.gpu, number);  // a note
    }
    note_of(action.client, number);
  };
  for (const policy::Action& action : actions) std::visit(note_action, action);
  if (const auto* left = std::get_if<policy::ClientLeft>(&event)) forget(left->client);
}

uint64_t ChangesOfGpus::on(policy::GpuId gpu) const { return std::max(on_all_, gpu < on_gpus_.size() ? on_gpus_[gpu] : 0); }

void ChangesOfGpus::note_on(policy::GpuId gpu, uint64_t number) {
  if (gpu >= on_gpus_.size()) on_gpus_.resize(gpu + 1);
  on_gpus_[gpu] = number;
}

void ChangesOfGpus::note_of(policy::ClientId client, uint64_t number) {
  const auto at = clients_.find(client);
  if (at != clients_.end()) note_on(at->second.gpu, number);
}

void ChangesOfGpus::note_of_tenant(policy::TenantId tenant, uint64_t number) {
  const auto at = tenants_.find(tenant);
  if (at == tenants_.end()) return;
  for (const policy::GpuId gpu : at->second) note_on(gpu, number);
}

void ChangesOfGpus::forget(policy::ClientId client) {
  const auto at = clients_.find(client);
  if (at == clients_.end()) return;
  const auto of = tenants_.find(at->second.tenant);
  of->second.erase(std::find(of->second.begin(), of->second.end(), at->second.gpu));
  if (of->second.empty()) tenants_.erase(of);
  clients_.erase(at);
}

}  // namespace nvshare::scheduler
