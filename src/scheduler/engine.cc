#include "scheduler/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "policy/parts.h"

namespace nvshare::scheduler {
namespace {

using namespace protocol;

constexpr policy::Duration kSaveInterval = 100'000'000;      // many that come or go within it are written together
constexpr policy::Duration kSaveIntervalPerTenant = 50'000;  // and more, as the file is written as a whole
constexpr policy::Duration kHostLookDelay = 20'000'000;      // after a client has left; many that leave within it share a look
constexpr size_t kClientsKeptAtOnce = 250;                   // some 0.1 ms

uint32_t idle_us(policy::Duration idle) { return static_cast<uint32_t>(std::clamp<policy::Duration>(idle / 1000, 0, kIdleReleaseUsMax)); }

Contention contention_of(const policy::SendContention& action) {
  return {action.waiters,
          action.memory_waiters,
          static_cast<uint64_t>(action.swap_cost),
          action.limited ? kLimitedCompute : 0,
          idle_us(action.idle_release),
          static_cast<uint8_t>(action.gang_runs),
          {},
          idle_us(action.pause)};
}

}  // namespace

Engine::Engine(Options options, Transport& transport, policy::Instant now)
    : settings_(std::move(options.settings)),
      epoch_(options.epoch),
      started_(now),
      transport_(transport),
      messenger_(clients_, transport),
      hooks_(std::move(options.hooks)),
      steps_(settings_.policy, std::move(options.trace)),
      start_time_if_alive_(options.start_time_if_alive),
      known_(options.known_clients_file, options.start_time_if_alive),
      tenants_(options.tenants_file, options.look_at_cgroups ? options.look_at_cgroups : cgroups_of, options.cgroup_reader,
               options.start_time_of),
      gpus_(options.gpus, options.gpus_most),
      departures_(known_, [this](pid_t pid, uint64_t start_time) { return is_alive(pid, start_time); }),
      host_({std::move(options.look_at_host), std::move(options.host_memory_of), std::move(options.new_segment_id), options.segment_maker},
            *this) {
  for (const std::string& problem : {known_.problem(), tenants_.problem()}) {
    if (!problem.empty()) spdlog::warn("{}", problem);
  }
  for (const auto& [id, client] : known_.missing()) {
    if (Tenant* tenant = tenants_.find(client.tenant)) ++tenant->awaited;
    tenants_.keep_id(client.tenant);
  }
  for (const auto& [id, client] : known_.ended()) departures_.absent_ended(id, gpus_, now);
  if (!options.tenants_file.empty()) tenants_.save_later();
  if (!known_.missing().empty() && settings_.restart_grace > 0) {
    spdlog::info("{} clients of the previous scheduler live; granting nothing until they are back, for {:.1f} s at most",
                 known_.missing().size(), static_cast<double>(settings_.restart_grace) / 1e9);
    hold_ = RestartHold{now + settings_.restart_grace, {}, {}};
    limits_.freeze(true, now);
  }
  update_host_memory(now, true);
}

Engine::~Engine() = default;

// Nothing that a restart needs is lost by it: what people set is kept at once, and which tenants' clients live is in known_.
void Engine::save_tenants_soon(policy::Instant now) {
  if (tenants_.is_unsaved() && !save_at_)
    save_at_ = now + kSaveInterval + kSaveIntervalPerTenant * static_cast<int64_t>(tenants_.all().size());
}

int64_t Engine::remember(Client& client, const MemoryReport& memory, policy::Instant now) {
  usage_totals_.allocates(client.tenant, client.gpu, bounded(client.memory.allocated), bounded(memory.allocated));
  const int64_t swapped = bounded(memory.allocated) - bounded(memory.resident);
  client.report(memory);
  limits_.report(client, bounded(memory.charged), now);
  // Swapped memory lies in the client's segments; what was never written lies nowhere.
  const int64_t used_more =
      host_.report(client.id, bounded(memory.swappable_host), std::min(swapped - client.unwritten, bounded(memory.swappable_host)));
  if (client.backend == Backend::kManaged)
    clients_.set_elsewhere(client, std::clamp<int64_t>(swapped, 0, HostLender::most_needed(gpus_[client.gpu].total)));
  return used_more;
}

void Engine::request_lock(policy::ClientId client, policy::Instant now) {
  if (hold_) return hold_->lock_requests.push_back(client);
  apply(policy::LockRequested{client}, now);
}

void Engine::change_memory(policy::MemoryChanged event, policy::Instant now) {
  if (hold_) {  // what it has counts at once, what it wants later
    hold_->growths.erase(event.client);
    if (event.wanted > 0) hold_->growths.emplace(event.client, event);
    event.wanted = 0;
  }
  apply(event, now);
  update_host_memory(now);
  if (const Client* client = clients_.find(event.client)) prepare_swaps(client->gpu);
}

void Engine::leave(policy::ClientId id, bool memory_freed, const char* why, policy::Instant now) {
  const RegisteredClient* found = clients_.find(id);
  if (found == nullptr) return;
  const RegisteredClient& client = *found;
  if (std::string more; lines_.allows(client.lines_of, now, &more)) {
    spdlog::info("client {} left: {} (pid {}): {}{}", id, client.program, client.pid, why, more);
  }
  if (hold_) hold_->growths.erase(id);
  const bool watched = !memory_freed && gpus_[client.gpu].nvml && (client.seen_by_nvml || gpus_.nvml_sees_pids());
  // Its socket closes before its GPU memory is free; or its connection broke, and it goes on with what it has.
  const bool waits_for_end = !memory_freed && !watched && is_alive(client.pid, client.start_time);
  if (watched) departures_.watch(id, {client.pid, client.gpu, now, client.believed.resident, client.most_on_gpu(), now, now});
  if (!memory_freed) {
    departures_.add(id, {client.pid, client.start_time, client.gpu, now, client.claims, client.believed.allocated, waits_for_end});
  }
  keep_on_gpu(client, true);
  usage_totals_.allocates(client.tenant, client.gpu, bounded(client.memory.allocated), 0);
  if (auto view = policy::view_of_client(steps_.state(), id, now)) usage_totals_.leaves(id, {std::move(*view)});
  const Tenant* tenant = tenants_.find(client.tenant);
  const bool is_last = tenant != nullptr && tenant->clients == 1;
  const std::vector<policy::Event> exceptions = is_last ? exceptions_of(*tenant, false) : std::vector<policy::Event>();
  tenants_.leave(client.tenant);
  save_tenants_soon(now);
  const bool has_swapped = host_.concerns(id) || client.backend == Backend::kManaged;
  host_.leave(borrower(client));
  const policy::GpuId gpu = client.gpu;
  clients_.erase(id);
  if (clients_.all().empty()) forget_totals(now);  // while there are some, housekeeping does it
  memory_freed ? known_.leave(id) : known_.depart(id);
  apply(policy::ClientLeft{id, memory_freed, watched || waits_for_end}, now);
  for (const policy::Event& exception : exceptions) apply(exception, now);
  exports_.client_left(id);
  limits_.leave(id, now);
  if (has_swapped) {
    update_host_memory(now, true);
  } else if (!look_at_host_at_) {
    look_at_host_at_ = now + kHostLookDelay;  // its own memory is the host's again, soon
  }
  prepare_swaps(gpu);
}

void Engine::forget_totals(policy::Instant now) {
  usage_totals_.keep_only([this](policy::TenantId tenant) { return tenants_.find(tenant) != nullptr; },
                          policy::view_of_tenants(steps_.state(), now));
}

bool Engine::housekeep(policy::Instant now, bool all) {
  bool done = housekeep_on(now);
  while (all && !done) done = housekeep_on(now);
  return done;
}

// What comes next is set first: what fails is not done again and again.
bool Engine::housekeep_on(policy::Instant now) {
  using Next = Housekeeping::Next;
  const auto is_followed_by = [this](Next next) { housekeeping_.next = next; };
  switch (housekeeping_.next) {
    case Next::kTenants:
      is_followed_by(Next::kTotals);
      tenants_.prune();
      return false;
    case Next::kTotals:
      is_followed_by(Next::kMemory);
      forget_totals(now);
      return false;
    case Next::kMemory:
      is_followed_by(Next::kClients);
      housekeeping_.client = 0;
      for (policy::GpuId gpu = 0; gpu < gpus_.size(); ++gpu) prepare_swaps(gpu);
      update_host_memory(now, true);
      forget_absent(now);
      apply(departures_.look_up(settings_.policy, now), now);
      departures_.forget_old(settings_.policy, now);
      return false;
    case Next::kClients:
      if (!keep_some_clients()) is_followed_by(Next::kKnown);
      return false;
    case Next::kKnown:
      is_followed_by(Next::kAccounts);
      known_.keep_up();
      return false;
    case Next::kAccounts:
      break;
  }
  is_followed_by(Next::kTenants);
  keep_accounts(now);
  steps_.flush();
  return true;
}

bool Engine::keep_some_clients() {
  size_t count = 0;
  for (auto at = clients_.all().upper_bound(housekeeping_.client); at != clients_.all().end(); ++at) {
    if (++count > kClientsKeptAtOnce) return true;
    housekeeping_.client = at->first;
    limits_.keep_lease(at->first);
    keep_on_gpu(at->second, true);
  }
  return false;
}

std::optional<policy::Instant> Engine::next_deadline() const {
  std::optional<policy::Instant> deadline = policy::next_deadline(steps_.state());
  if (hold_ && (!deadline || hold_->until < *deadline)) deadline = hold_->until;
  for (const std::optional<policy::Instant>& other :
       {save_at_, look_at_host_at_, host_.next_deadline(), limits_.next_deadline(), departures_.next_deadline(settings_.policy)}) {
    if (other && (!deadline || *other < *deadline)) deadline = other;
  }
  return deadline;
}

void Engine::deadline_reached(policy::Instant now) {
  if (hold_ && hold_->until <= now) {
    spdlog::warn("{} clients of the previous scheduler did not come back in time; going on without them", known_.missing().size());
    end_hold(now);
  }
  if (save_at_ && *save_at_ <= now) {
    save_at_.reset();
    if (tenants_.is_unsaved()) tenants_.save_changes();
  }
  apply(departures_.deadline_reached(settings_.policy, now), now);
  std::optional<policy::Instant> deadline = policy::next_deadline(steps_.state());
  if (deadline && *deadline <= now) apply(policy::Tick{}, now);
  if (look_at_host_at_ && *look_at_host_at_ <= now) update_host_memory(now, true);
  host_.deadline_reached(now);
  limits_.deadline_reached(now);
}

void Engine::end_hold(policy::Instant now) {
  RestartHold ended = std::move(*hold_);
  hold_.reset();
  apply(departures_.hold_absent(gpus_, settings_.policy, now), now);
  see_foreign(now);
  count_absent(now);
  limits_.freeze(false, now);
  for (auto& [id, growth] : ended.growths) {
    Client* client = clients_.find(id);
    if (client == nullptr) continue;
    growth.memory = believe(*client, client->memory);
    apply(growth, now);
  }
  for (policy::ClientId id : ended.lock_requests) {
    if (clients_.find(id) != nullptr) apply(policy::LockRequested{id}, now);
  }
}

void Engine::apply(const policy::Event& event, policy::Instant now) {
  perform(steps_.step(event, now));
  steps_.record(event, now);
}

void Engine::apply(const std::vector<policy::Event>& events, policy::Instant now) {
  for (const policy::Event& event : events) apply(event, now);
}

void Engine::perform(const policy::Actions& actions) {
  struct Performer {
    Engine& engine;
    void operator()(const policy::SendLock& a) const {
      engine.note_grant(a.client, a.budget);
      engine.messenger_.send_to(a.client, LockOk{{engine.epoch_, a.grant}, static_cast<uint64_t>(a.budget), a.budget_sequence});
    }
    void operator()(const policy::SendDrop& a) const {
      engine.messenger_.send_to(a.client, DropLock{{engine.epoch_, a.grant}, a.attempt, a.together, {}});
    }
    void operator()(const policy::SendKeep& a) const { engine.messenger_.send_to(a.client, KeepLock{{engine.epoch_, a.grant}}); }
    void operator()(const policy::SendEvict& a) const {
      engine.messenger_.send_to(a.client, Evict{a.eviction, static_cast<uint64_t>(a.bytes)});
    }
    void operator()(const policy::SendWait& a) const { engine.messenger_.send_to(a.client, WaitForMem{a.request}); }
    void operator()(const policy::SendMemory& a) const {
      engine.note_grant(a.client, a.budget);
      engine.messenger_.send_to(a.client, MemAvailable{a.request, a.granted, {}, static_cast<uint64_t>(a.budget), a.budget_sequence});
    }
    void operator()(const policy::SendContention& a) const { engine.messenger_.send_to(a.client, contention_of(a)); }
    void operator()(const policy::SendAskProgress& a) const { engine.ask_progress(a); }
    void operator()(const policy::SendPrefetch& a) const { engine.prefetch(a); }
    void operator()(const policy::SendCeiling& a) const {
      RegisteredClient* client = engine.clients_.find(a.client);
      if (client == nullptr || client->ceiling == a.ceiling) return;
      client->ceiling = a.ceiling;
      engine.limits_.send_limit(*client);
    }
    void operator()(const policy::Note& note) const { engine.log_note(note); }
  };
  for (const policy::Action& action : actions) std::visit(Performer{*this}, action);
}

}  // namespace nvshare::scheduler
