#include "policy/testing/test_ledger.h"

#include <algorithm>
#include <set>

#include "policy/overloaded.h"

namespace nvshare::policy::testing {
namespace {

std::string client_name(ClientId id) { return "client " + std::to_string(id); }

}  // namespace

Bytes Ledger::safe_limit(GpuId gpu) const {
  const Device& device = gpus_.at(gpu);
  Bytes limit = device.total - config_.reserve_fixed - device.foreign;
  for (const auto& [id, account] : accounts_) limit -= account.gpu == gpu ? account.overhead : 0;
  return limit;
}

Bytes Ledger::promised(GpuId gpu) const {
  Bytes sum = 0;
  for (const auto& [id, account] : accounts_) {
    if (account.gpu == gpu) sum += std::max({account.memory.resident, account.grant ? account.budget : 0, account.prefetch_budget});
  }
  for (const auto& [id, entry] : departed_) sum += entry.first == gpu ? entry.second : 0;
  return sum;
}

Bytes Ledger::needed(GpuId gpu) const {
  Bytes sum = 0;
  for (const auto& [id, account] : accounts_) {
    if (account.gpu == gpu && account.grant) sum += std::max(account.memory.allocated, account.budget);
  }
  return sum;
}

Bytes Ledger::places(GpuId gpu) const {
  Bytes sum = 0;
  for (const auto& [id, account] : accounts_) {
    if (account.gpu != gpu || account.grant || !config_.gang_turns) continue;
    const bool others_run = std::any_of(accounts_.begin(), accounts_.end(), [&, &own = account](const auto& entry) {
      return entry.second.tenant == own.tenant && entry.second.grant;
    });
    sum += others_run ? std::max(account.memory.allocated, account.memory.resident) : 0;
  }
  return sum;
}

bool Ledger::anybody_waits(ClientId dropped) const {
  const auto leaving = accounts_.find(dropped);
  if (leaving == accounts_.end()) return false;
  std::set<GpuId> gpus;  // of its tenant: it may have to leave together with the others there
  for (const auto& [id, account] : accounts_) {
    if (account.tenant == leaving->second.tenant) gpus.insert(account.gpu);
  }
  const bool any_gpu = gpus.size() > 1 && config_.gang_turns;  // a gang leaves for another that could come to wait for it, too
  return std::any_of(accounts_.begin(), accounts_.end(), [&](const auto& entry) {
    const Account& account = entry.second;
    const bool lacks_budget = account.grant != 0 && account.memory.allocated > account.budget && entry.first != dropped;
    const bool waits = account.waits && !suspended_.contains(account.tenant);
    return (any_gpu || gpus.contains(account.gpu)) && (waits || account.wanted > 0 || lacks_budget);
  });
}

bool Ledger::loads_in_vain(ClientId dropped) const {
  const Account& leaving = accounts_.at(dropped);
  if (leaving.memory.allocated <= leaving.budget) return false;
  return std::any_of(accounts_.begin(), accounts_.end(), [&](const auto& entry) {
    const Account& account = entry.second;
    return account.gpu == leaving.gpu && account.grant == 0 && account.memory.resident > 0 && account.move_failed;
  });
}

bool Ledger::its_gang_runs(ClientId client) const {
  const Account& own = accounts_.at(client);
  return config_.gang_turns && std::any_of(accounts_.begin(), accounts_.end(), [&](const auto& entry) {
           return entry.second.tenant == own.tenant && entry.second.gpu != own.gpu && entry.second.grant != 0;
         });
}

bool Ledger::over_limit(ClientId dropped) const {
  const auto leaving = accounts_.find(dropped);
  if (leaving == accounts_.end()) return false;
  return std::any_of(accounts_.begin(), accounts_.end(), [&](const auto& entry) {
    const Account& account = entry.second;
    if (account.tenant != leaving->second.tenant) return false;
    return std::max(needed(account.gpu) + places(account.gpu), promised(account.gpu)) > safe_limit(account.gpu);
  });
}

bool Ledger::beside_limit(ClientId dropped) const {
  const auto leaving = accounts_.find(dropped);
  if (leaving == accounts_.end()) return false;
  return std::any_of(accounts_.begin(), accounts_.end(),
                     [&](const auto& entry) { return entry.second.gpu == leaving->second.gpu && limited_.contains(entry.second.tenant); });
}

bool Ledger::beside_sharer(ClientId dropped) const {
  const auto leaving = accounts_.find(dropped);
  if (leaving == accounts_.end()) return false;
  return std::any_of(accounts_.begin(), accounts_.end(), [&](const auto& entry) {
    const Account& other = entry.second;
    if (other.gpu != leaving->second.gpu || other.grant == 0) return false;
    return other.group != leaving->second.group || (other.tenant != leaving->second.tenant && (other.measured || leaving->second.measured));
  });
}

std::optional<std::string> Ledger::saw(const Event& event) {
  const auto with = [&](ClientId id, auto change) {
    if (const auto at = accounts_.find(id); at != accounts_.end()) change(at->second);
  };
  std::visit(Overloaded{
                 [&](const GpuAppeared& e) { gpus_[e.gpu].total = e.total; },
                 [&](const ForeignMemory& e) { gpus_[e.gpu].foreign = e.bytes; },
                 [&](const HostMemory&) {},
                 [&](const ClientJoined& e) {
                   for (const ClientId former : e.replaces) departed_.erase(former);
                   Account& account = accounts_[e.client];
                   account.gpu = e.gpu;
                   account.tenant = e.tenant;
                   account.memory = e.memory;
                   account.overhead = config_.overhead_default;
                   account.waits = e.wants_lock && !e.has_lock;
                   account.came_with_lock = e.has_lock;
                 },
                 [&](const ClientOverhead& e) { with(e.client, [&](Account& account) { account.overhead = e.bytes; }); },
                 [&](const ClientLeft& e) {
                   with(e.client, [&](Account& account) {
                     if (!e.memory_freed) departed_[e.client] = {account.gpu, std::max(account.memory.resident, account.prefetch_budget)};
                   });
                   accounts_.erase(e.client);
                 },
                 [&](const ClientMemoryFreed& e) { departed_.erase(e.client); },
                 [&](const MemoryHeld& e) {
                   departed_[e.client] = {e.gpu, e.bytes};
                 },
                 [&](const LockRequested& e) { with(e.client, [&](Account& account) { account.waits = account.grant == 0; }); },
                 [&](const LockReleased& e) {
                   with(e.client, [&](Account& account) {
                     if (account.grant != e.grant) return;
                     account.memory = e.memory;
                     account.grant = 0;
                     account.wanted = 0;
                     account.dropping = account.drained = account.catches_up = account.paused = false;
                   });
                 },
                 [&](const LockPaused& e) { with(e.client, [&](Account& account) { account.paused |= account.grant == e.grant; }); },
                 [&](const LockResumed& e) { with(e.client, [&](Account& account) { account.paused &= account.grant != e.grant; }); },
                 [&](const Drained& e) {
                   with(e.client, [&](Account& account) {
                     if (account.grant == e.grant && account.attempt == e.attempt) account.drained = account.dropping;
                   });
                 },
                 [&](const EndsSoon&) {},
                 [&](const DrainFailed& e) {
                   with(e.client, [&](Account& account) {
                     if (account.grant != e.grant) return;
                     account.gave_up = account.dropping;
                     account.dropping = false;
                   });
                 },
                 [&](const MemoryChanged& e) {
                   with(e.client, [&](Account& account) {
                     account.memory = e.memory;
                     account.wanted = account.grant ? e.wanted : 0;
                     if (account.grant && e.budget_sequence == account.sequence) account.budget = std::min(account.budget, e.budget);
                   });
                 },
                 [&](const SwapProgressed& e) {
                   with(e.client, [&](Account& account) {
                     account.memory = e.memory;
                     if (e.ahead && e.finished && e.id == account.prefetch) account.prefetch = account.prefetch_budget = 0;
                     if (!e.out || !e.finished || !account.evicting) return;
                     account.evicting = false;
                     account.move_failed = e.failed || e.memory.resident > account.resident_asked;
                   });
                 },
                 [&](const MemoryBelieved&) {},
                 [&](const ConfigChanged& e) { config_ = e.config; },
                 [&](const ComputeLimit& e) {
                   if (e.ceiling < 100 || e.reserved > 0) {
                     limited_.insert(e.tenant);
                   } else {
                     limited_.erase(e.tenant);
                   }
                 },
                 [&](const TenantPriority&) {},
                 [&](const TenantEnds&) {},
                 [&](const TenantSuspended& e) {
                   if (e.suspended) {
                     suspended_.insert(e.tenant);
                   } else {
                     suspended_.erase(e.tenant);
                   }
                 },
                 [&](const TenantTurns&) {},
                 [&](const ClientShares& e) {
                   with(e.client, [&](Account& account) {
                     account.group = e.group;
                     account.measured = e.measured;
                   });
                 },
                 [&](const ClientProgressed&) {},
                 [&](const AccountKept&) {},
                 [&](const Tick&) {},
             },
             event);
  return std::nullopt;
}

std::optional<std::string> Ledger::returned(const Actions& actions) {
  std::optional<std::string> wrong;
  const auto claim = [&](bool holds, const std::string& otherwise) {
    if (!holds && !wrong) wrong = otherwise;
  };
  std::map<GpuId, bool> raised;

  const auto hand_out = [&](Account& account, Bytes budget, uint64_t sequence) {
    raised[account.gpu] |= budget > std::max(account.grant ? account.budget : 0, account.memory.resident);
    account.budget = budget;
    account.sequence = sequence;
  };
  for (const Action& action : actions) {
    std::visit(Overloaded{
                   [&](const SendLock& a) {
                     claim(accounts_.contains(a.client), client_name(a.client) + " got the lock and is not there");
                     if (!accounts_.contains(a.client)) return;
                     Account& account = accounts_[a.client];
                     claim(a.budget >= account.memory.resident, client_name(a.client) + ": budget below what is resident");
                     claim(a.budget_sequence > account.sequence, client_name(a.client) + ": an old budget sequence");
                     claim(a.grant == account.grant || account.grant == 0, client_name(a.client) + ": a second grant");
                     claim(!account.evicting, client_name(a.client) + ": granted while it moves out");
                     // But for a new budget, what it came with, and a gang that needs it to come to an end.
                     claim(account.grant != 0 || account.came_with_lock || its_gang_runs(a.client) || !suspended_.contains(account.tenant),
                           client_name(a.client) + ": granted while suspended");
                     claim(a.budget >= account.prefetch_budget, client_name(a.client) + ": budget below what may be coming in");
                     hand_out(account, a.budget, a.budget_sequence);
                     account.prefetch = account.prefetch_budget = 0;
                     account.grant = a.grant;
                     account.waits = account.came_with_lock = false;
                   },
                   [&](const SendDrop& a) {
                     Account& account = accounts_.at(a.client);
                     claim(account.grant == a.grant && a.grant != 0, client_name(a.client) + ": a drop of a grant that it does not have");
                     claim(!account.dropping || (account.drained && !a.together), client_name(a.client) + ": asked to drop twice");
                     const bool again = account.drained || account.catches_up;
                     claim(again || anybody_waits(a.client) || over_limit(a.client) || beside_limit(a.client) || beside_sharer(a.client) ||
                               account.paused || suspended_.contains(account.tenant) || loads_in_vain(a.client),
                           client_name(a.client) + ": asked to drop and nobody waits");
                     claim(a.attempt > account.attempt, client_name(a.client) + ": an old attempt");
                     account.attempt = a.attempt;
                     account.dropping = true;
                     account.drained = account.catches_up = false;
                   },
                   [&](const SendKeep& a) {
                     Account& account = accounts_.at(a.client);
                     claim(account.grant == a.grant && a.grant != 0, client_name(a.client) + ": to keep a grant that it does not have");
                     claim(account.dropping || account.catches_up || account.gave_up,
                           client_name(a.client) + ": told to go on, and was not asked to drop");
                     account.catches_up = account.drained;
                     account.dropping = account.drained = account.gave_up = false;
                   },
                   [&](const SendEvict& a) {
                     Account& account = accounts_.at(a.client);
                     claim(account.grant == 0, client_name(a.client) + ": evicted while it holds the lock");
                     claim(!account.evicting, client_name(a.client) + ": a second eviction");
                     claim(account.prefetch == 0, client_name(a.client) + ": evicted while memory comes in");
                     claim(a.bytes > 0 && a.bytes <= account.memory.resident - account.memory.unswappable,
                           client_name(a.client) + ": asked to move out more than it can");
                     account.evicting = true;
                     account.move_failed = false;
                     account.resident_asked = account.memory.resident - a.bytes;
                   },
                   [&](const SendPrefetch& a) {
                     Account& account = accounts_.at(a.client);
                     claim(account.grant == 0 && account.waits, client_name(a.client) + ": brings memory in and does not wait");
                     claim(!account.evicting && account.prefetch == 0, client_name(a.client) + ": brings memory in twice, or moves out");
                     claim(a.budget > account.memory.resident && a.budget <= account.memory.allocated,
                           client_name(a.client) + ": brings in more than it has");
                     claim(!suspended_.contains(account.tenant), client_name(a.client) + ": brings memory in while suspended");
                     account.prefetch = a.prefetch;
                     account.prefetch_budget = a.budget;
                     raised[account.gpu] = true;
                   },
                   [&](const SendWait& a) {
                     claim(accounts_.at(a.client).wanted > 0, client_name(a.client) + ": told to wait and wants nothing");
                   },
                   [&](const SendMemory& a) {
                     Account& account = accounts_.at(a.client);
                     claim(account.wanted > 0, client_name(a.client) + ": an answer to no request");
                     claim(!a.granted || a.budget >= account.memory.allocated + account.wanted,
                           client_name(a.client) + ": granted memory that its budget does not cover");
                     hand_out(account, a.budget, a.budget_sequence);
                     account.wanted = 0;
                   },
                   [](const SendContention&) {},
                   [](const SendAskProgress&) {},
                   [](const SendCeiling&) {},
                   [](const Note&) {},
               },
               action);
  }
  for (const auto& [gpu, rose] : raised) {
    claim(!rose || promised(gpu) <= safe_limit(gpu), "GPU " + std::to_string(gpu) + ": " + std::to_string(promised(gpu) >> 20) +
                                                         " MiB promised, the safe limit is " + std::to_string(safe_limit(gpu) >> 20) +
                                                         " MiB");
  }
  return wrong;
}

}  // namespace nvshare::policy::testing
