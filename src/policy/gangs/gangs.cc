// Gangs: a tenant on several GPUs gets them all or none, and gives them up together, so that a collective never waits for a neighbour's
// turn and two tenants never trade the same GPUs in step. Members are clients, whether threads of one process or processes of their own.
//
// - A gang's turn begins on all GPUs where members wait, in one step. Members that do not wait hold nobody up.
// - A member that asks while its gang runs comes before all others, and runs as soon as it fits.
// - A member that gives the lock up while others of its gang go on keeps its place: it may be needed back at any moment.
// - A member without the lock, while others of its gang have it, gets it before it allocates (SendContention::gang_runs): what it has was
//   looked at when the gang's turn began, so it can have that back; and more is asked for with the lock, where it can be refused.
// - A drop goes to all members, and none leaves before all have drained (gang_drains.cc).
// - Two gangs run at the same time only if no member of one could come to wait for the other and the other way round.
// - Where a tenant's clients do not fit together, each of its processes that is on several GPUs is a gang by itself: two such processes
//   would else trade GPUs in step for ever, each with one gate for all of its GPUs.
#include "policy/gangs/gangs.h"

#include "policy/clients.h"
#include "policy/memory/memory.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

template <typename Action>
void each_member(const Gang& gang, Action action) {
  for (const Gang::Member& member : gang.members) action(*member.on, *member.is);
}

template <typename Predicate>
bool any_member(const Gang& gang, Predicate predicate) {
  return std::any_of(gang.members.begin(), gang.members.end(),
                     [&](const Gang::Member& member) { return predicate(static_cast<const Client&>(*member.is)); });
}

bool in_use(const Client& client) { return client.stays() || client.state == ClientState::kDropping; }

// Could all members on each GPU run together, with nobody beside them? Else they have to take turns among themselves.
bool fits_together(const Gang& gang) {
  return std::all_of(gang.on.begin(), gang.on.end(), [](const Gang::OnGpu& on) { return on.need <= on.gpu->gangs.room; });
}

Bytes room_for_gangs(const Config& config, const Gpu& gpu) { return safe_limit(config, gpu) - gpu.sums.immovable; }

void note_needs(Gang& gang) {
  for (Gang::OnGpu& on : gang.on) {
    Bytes need_here = 0;
    for (size_t i = on.begin; i < on.end; ++i) {
      const Client& client = *gang.members[i].is;
      need_here += std::max(need(client), client.memory.resident) - immovable(client);
    }
    FlatMap<std::pair<Bytes, GangId>, Spread*>& by_need = on.gpu->gangs.by_need;
    if (need_here == on.need && by_need.contains({on.need, gang.id})) continue;
    by_need.erase({on.need, gang.id});
    on.need = need_here;
    by_need.emplace({on.need, gang.id}, gang.of);
  }
}

void end_gang_turn(Context& context, Gang& gang) {
  if (gang.interrupted) {
    gang.turn_carried += gang.turn_start ? context.now - *gang.turn_start : 0;  // comes back in its old place
  } else {
    gang.turn_carried = 0;
    gang.last_used = context.now;
  }
  gang.in_turn = gang.interrupted = false;
  gang.turn_start.reset();
  note_loading(context.state, gang);
}

void follow_turn(Context& context, Gang& gang) {
  const bool holds = any_member(gang, in_use);
  if (gang.in_turn && !holds) end_gang_turn(context, gang);
  if (!gang.in_turn && holds) {  // began before it was a gang, or under the previous scheduler
    gang.in_turn = true;
    gang.granted_at = context.now;
    gang.load_allowance = 0;
    note_loading(context.state, gang);
    each_member(gang, [&](const Gpu&, const Client& client) {
      if (!client.holds_lock()) return;
      gang.granted_at = std::min(gang.granted_at, client.turn.granted_at);
      gang.load_allowance = std::max(gang.load_allowance, client.turn.load_allowance);
    });
    each_member(gang, [&](const Gpu& gpu, Client& client) {  // a drain may have been under way
      if (client.holds_lock() || client.memory.resident == 0 || client.evictions.current) return;
      client.place.kept = room_if(context.state, gpu, {.comers = only(client), .dropping_released = false}, context.now).fits();
      note_place(client);
    });
  }
  const bool leaves = !any_member(gang, [](const Client& client) { return client.stays(); });
  each_member(gang, [&](const Gpu& gpu, Client& client) {
    if (const Gang* own = gang_of(context.state, client); own != nullptr && own != &gang) return;  // its process's
    client.place.kept = client.place.kept && gang.in_turn && gang.whole;
    client.place.leaves = client.place.kept && leaves;
    note_place(client);
    client.place.lost = client.place.kept && client.waits() &&
                        !room_if(context.state, gpu, {.comers = only(client), .dropping_released = false}, context.now).fits();
    note_place(client);
  });
}

// By GPU, then by client.
std::vector<Gang::Member> members_of(State& state, TenantId tenant, const Spread& spread) {
  std::vector<Gang::Member> members;
  for (const auto& [gpu_id, count] : spread.on) {
    each_client(state.gpus.at(gpu_id), tenant, [&](Client& client) {
      if (client.gang) members.push_back({client.gpu, client.id, client.indexed.home, &client});
    });
  }
  return members;
}

void set_members(Gang& gang, std::vector<Gang::Member> members) {
  unlist(gang);
  gang.members = std::move(members);
  gang.on.clear();
  for (size_t i = 0; i < gang.members.size(); ++i) {
    if (gang.on.empty() || gang.on.back().gpu != gang.members[i].on) gang.on.push_back({.gpu = gang.members[i].on, .begin = i});
    gang.on.back().end = i + 1;
  }
  for (const Gang::OnGpu& on : gang.on) on.gpu->gangs.most_members = std::max(on.gpu->gangs.most_members, on.end - on.begin);
}

void forget_gang(State& state, Gang& gang) {
  unlist(gang);
  state.gang_changes.loading.erase(gang.id);
}

// `known`: null where it is to be looked for. `members`: who they are, where that may have changed.
template <typename Members>
Gang& form_gang(Context& context, GangId id, Spread& spread, Gang* known, bool changed, Members members) {
  State& state = context.state;
  bool is_new = false;
  if (known == nullptr) {
    const auto [at, emplaced] = state.gangs.try_emplace(id);
    known = &at->second;
    is_new = emplaced;
  }
  Gang& gang = *known;
  gang.id = id;
  gang.of = &spread;
  if (is_new || changed) set_members(gang, members());
  if (is_new) {
    gang.last_used = context.now;
    each_member(gang, [&](const Gpu&, const Client& client) { gang.last_used = std::min(gang.last_used, client.past.last_used); });
  }
  note_needs(gang);
  gang.whole = fits_together(gang);
  return gang;
}

// Of a tenant whose clients do not fit together.
void form_gangs_of_processes(Context& context, Gang& all) {
  if (all.whole && !all.parted) return;
  State& state = context.state;
  const TenantId tenant = all.id.tenant;
  auto at = state.gangs.upper_bound({tenant, 0});
  std::map<ProcessId, std::vector<Gang::Member>> of_processes;
  if (!all.whole) {
    for (const Gang::Member& member : all.members) of_processes[member.is->process].push_back(member);
  }
  // Members are in the order of their GPUs.
  std::erase_if(of_processes, [](const auto& entry) { return entry.first == 0 || entry.second.front().gpu == entry.second.back().gpu; });
  all.parted = !of_processes.empty();
  while (at != state.gangs.end() && at->first.tenant == tenant) {
    if (of_processes.contains(at->first.process)) {
      ++at;
      continue;
    }
    forget_gang(state, at->second);
    at = state.gangs.erase(at);
  }
  for (auto& [process, members] : of_processes) {
    follow_turn(context, form_gang(context, {tenant, process}, *all.of, nullptr, true, [&own = members] { return std::move(own); }));
  }
}

// Of tenants that are on several GPUs no more.
void forget_gangs(State& state, const Gpus& gpus) {
  for (const TenantId tenant : std::exchange(state.apart, {})) {
    if (state.on_several.contains(tenant)) continue;
    const auto first = state.gangs.lower_bound({tenant, 0});
    auto end = first;
    while (end != state.gangs.end() && end->first.tenant == tenant) ++end;
    if (first == end) continue;
    for (auto& [gpu_id, gpu] : state.gpus) {
      each_client(gpu, tenant, [&](Client& client) {
        client.place = {};
        note_place(client);
        forget_unmet(client);
        if (is_among(gpus, client.gpu)) client.indexed.home->contention.also_to_tell.push_back(&client);
      });
    }
    for (auto gang = first; gang != end; ++gang) forget_gang(state, gang->second);
    state.gangs.erase(first, end);
    if (const auto spread = state.spread.find(tenant); spread != state.spread.end()) spread->second.gang = nullptr;
  }
}

}  // namespace

namespace {

void form_gangs_of(Context& context, TenantId tenant, Spread& spread) {
  State& state = context.state;
  state.gang_changes.to_form.erase(tenant);
  spread.to_form = false;
  const bool changed = std::exchange(spread.changed, false);
  Gang& gang = form_gang(context, {tenant, 0}, spread, spread.gang, changed, [&] { return members_of(state, tenant, spread); });
  spread.gang = &gang;
  if (!gang.whole && !gang.split_noted) {
    gang.split_noted = true;
    context.note(Note::Level::kInfo, gang.members.front().client,
                 "the programs of its tenant do not fit together on one of its GPUs: each takes its turns by itself");
  }
  form_gangs_of_processes(context, gang);
  follow_turn(context, gang);
  // Its gangs may fit together now, or no more, by what has changed after these were listed and told last.
  if (!std::exchange(spread.to_list, true)) state.gang_changes.to_list.emplace(tenant, &spread);
  if (!std::exchange(spread.to_tell, true)) state.gang_changes.to_tell.emplace(tenant, &spread);
}

// Gangs that fit together where they did not, or the other way round.
void note_room(State& state, Gpu& gpu) {
  const Bytes before = std::exchange(gpu.gangs.room, room_for_gangs(state.config, gpu));
  const auto [less, more] = std::minmax(before, gpu.gangs.room);
  if (less == more) return;
  const auto& by_need = gpu.gangs.by_need;
  for (auto at = by_need.lower_bound({less + 1, {}}); at != by_need.end() && at->first.first <= more; ++at)
    state.gang_changes.note(at->first.second.tenant, *at->second);
}

}  // namespace

void form_gangs(Context& context, const Gpus& gpus) {
  State& state = context.state;
  if (!state.apart.empty()) forget_gangs(state, gpus);
  if (state.on_several.empty()) return;
  for (Gpu* gpu : gpus) note_room(state, *gpu);
  std::vector<std::pair<TenantId, Spread*>> due;
  for (const auto* tenants : {&state.gang_changes.to_form, &state.gang_changes.asking_back}) {
    for (const auto& [tenant, spread] : *tenants) {
      if (is_among(gpus, spread->on.begin()->first)) due.emplace_back(tenant, spread);  // and so are its others
    }
  }
  std::sort(due.begin(), due.end());
  due.erase(std::unique(due.begin(), due.end()), due.end());
  for (const auto& [tenant, spread] : due) form_gangs_of(context, tenant, *spread);
}

Gang* find_gang(State& state, const Client& client) {
  Gang* const all = client.indexed.spread != nullptr ? client.indexed.spread->gang : nullptr;
  if (all == nullptr || all->whole) return all;
  const auto at = all->parted ? state.gangs.find({client.tenant, client.process}) : state.gangs.end();
  return at != state.gangs.end() && at->second.whole ? &at->second : nullptr;
}

const Gang::OnGpu* on_gpu(const Gang& gang, const Gpu& gpu) {
  const auto at = std::lower_bound(gang.on.begin(), gang.on.end(), gpu.id, [](const Gang::OnGpu& on, GpuId id) { return on.gpu->id < id; });
  return at != gang.on.end() && at->gpu == &gpu ? &*at : nullptr;
}

bool is_member(const Gang& gang, const Client& client) {
  return client.gang && client.tenant == gang.id.tenant && (gang.id.process == 0 || client.process == gang.id.process);
}

Instant gang_began(const Gang& gang) { return gang.turn_start.value_or(gang.granted_at + gang.load_allowance); }

Duration gang_loaded_for(const Gang& gang) {
  const Duration expected = std::max<Duration>(gang.load_allowance - kLoadGrace, 0) / 2;
  return std::clamp<Duration>(gang_began(gang) - gang.granted_at, 0, expected);
}

std::set<GpuId> gpus_of(const Gang& gang) {
  std::set<GpuId> gpus;
  for (const Gang::Member& member : gang.members) gpus.insert(member.gpu);
  return gpus;
}

GangPhase phase_of(const Gang& gang) {
  if (any_member(gang, [](const Client& client) { return client.stays(); })) return GangPhase::kRunning;
  return any_member(gang, in_use) ? GangPhase::kLeaving : GangPhase::kOut;
}

bool joins_its_gang(const State& state, const Client& client) {
  const Gang* gang = client.waits() ? gang_of(state, client) : nullptr;
  return gang != nullptr && phase_of(*gang) == GangPhase::kRunning;
}

void keep_place(Context& context, Client& client) {
  const Gang* gang = gang_of(context.state, client);
  client.place.kept = gang != nullptr && any_member(*gang, [&](const Client& other) { return other.id != client.id && in_use(other); });
  client.place.leaves = client.place.kept && phase_of(*gang) == GangPhase::kLeaving;
  note_place(client);
}

bool others_run(const State& state, const Client& client) {
  const Gang* gang = gang_of(state, client);
  return gang != nullptr && any_member(*gang, [&](const Client& other) { return other.id != client.id && other.holds_lock(); });
}

void note_loading(State& state, Gang& gang) {
  note_turn(gang);
  const bool loads = gang.in_turn && !gang.turn_start;
  if (loads) {
    state.gang_changes.loading.emplace(gang.id, &gang);
  } else {
    state.gang_changes.loading.erase(gang.id);
  }
}

void start_gangs(Context& context, const Gpus& gpus) {
  each_while_changing(context.state.gang_changes.loading, [&](Gang* gang) {
    if (!is_settled_with(*gang, gpus)) return;
    const bool loading = any_member(*gang, [](const Client& client) { return client.state == ClientState::kLoading; });
    const bool running = any_member(*gang, [](const Client& client) { return client.state == ClientState::kRunning; });
    if (!running || loading) return;
    gang->turn_start = context.now;
    note_loading(context.state, *gang);
  });
}

std::vector<Client*> stays_together(State& state, const Client& client) {
  std::vector<Client*> all;
  if (const Gang* gang = gang_of(state, client)) {
    each_member(*gang, [&](Gpu&, Client& member) {
      if (member.takes_place()) all.push_back(&member);
    });
  }
  return all;
}

Instant gang_due(const Context& context, const Gang& gang, const TurnTerms& terms) {
  const Instant began = gang_began(gang);
  Instant due = began - gang.turn_carried + terms.length;
  Instant worth = context.now;  // what was loaded, also by those that came later, has had its use by then
  Instant retry_at = 0;
  bool idle = true;
  std::optional<Instant> cap;
  each_member(gang, [&](const Gpu&, const Client& client) {
    if (client.place.kept && client.waits()) idle = false;
    if (!client.stays()) return;
    idle = idle && client.turn.idle_since.has_value();
    due = std::max(due, client.turn.began() + std::min(terms.length, terms.quantum));
    worth = std::max(worth, client.turn.began() + std::max<Duration>(terms.quantum - client.past.earned, 0));
    if (client.turn.due_cap && (!cap || *client.turn.due_cap < *cap)) cap = client.turn.due_cap;
    if (client.drain.backoff.failures > 0) retry_at = std::max(retry_at, client.drain.backoff.retry_at);
  });
  if (terms.wakes) due = std::min(due, worth);
  if (cap) due = std::min(due, *cap);
  if (idle || terms.load_is_stuck) due = context.now;
  return std::max(due, retry_at);
}

bool is_among(const Gpus& gpus, GpuId id) {
  if (gpus.empty()) return false;
  const GpuId first = gpus.front()->id, last = gpus.back()->id;
  if (id < first || id > last || last - first + 1 == gpus.size()) return first <= id && id <= last;
  const auto at = std::lower_bound(gpus.begin(), gpus.end(), id, [](const Gpu* gpu, GpuId other) { return gpu->id < other; });
  return at != gpus.end() && (*at)->id == id;
}

static bool comes_first(const Gpu* a, const Gpu* b) { return a->id < b->id; }

// In order. Where all ties hold both ways, what one of them reaches all of them reach.
static const Gpus& gpus_around(State& state, Gpu& gpu) {
  if (const auto known = state.around.find(gpu.id); known != state.around.end()) return *known->second;
  const uint64_t search = ++state.searches;
  std::set<GpuId> around = {gpu.id};
  Gpus look = {&gpu}, found = {&gpu};
  bool both_ways = true;
  while (!look.empty()) {
    const Gpu& at = *look.back();
    look.pop_back();
    for (const auto& [tenant, clients] : at.of_tenant) {
      const auto several = state.on_several.find(tenant);
      if (several == state.on_several.end()) continue;
      Spread& spread = *several->second;
      both_ways = both_ways && spread.on.contains(at.id);
      if (std::exchange(spread.seen_by, search) == search) continue;
      for (const auto& [other, count] : spread.on) {
        if (!around.insert(other).second) continue;
        look.push_back(&state.gpus.at(other));
        found.push_back(look.back());
      }
    }
  }
  std::sort(found.begin(), found.end(), comes_first);
  const auto shared = std::make_shared<const Gpus>(std::move(found));
  if (!both_ways) return *(state.around[gpu.id] = shared);
  for (const GpuId each : around) state.around[each] = shared;
  return *shared;
}

Gpus gpus_around(State& state, Gpus of) {
  if (state.on_several.empty()) return of;
  Gpus all;
  for (Gpu* gpu : of) {
    if (is_among(all, gpu->id)) continue;  // and so is what is around it
    const Gpus& others = gpus_around(state, *gpu);
    if (all.empty()) {
      all = others;
      continue;
    }
    Gpus both;
    std::set_union(all.begin(), all.end(), others.begin(), others.end(), std::back_inserter(both), comes_first);
    all = std::move(both);
  }
  return all;
}

void settle_with(State& state, const Concerned& concerned, Gpus besides) {
  state.settled.clear();
  if (std::holds_alternative<AllGpus>(concerned)) {
    for (auto& [id, gpu] : state.gpus) state.settled.push_back(&gpu);
    return;
  }
  Gpu* const* const only = std::get_if<Gpu*>(&concerned);
  if (only != nullptr && besides.empty()) {
    if (state.on_several.empty()) return state.settled.push_back(*only);
    state.settled = gpus_around(state, **only);
    return;
  }
  if (only != nullptr) {
    besides.push_back(*only);
  } else {
    const Gpus& gpus = std::get<Gpus>(concerned);
    besides.insert(besides.end(), gpus.begin(), gpus.end());
  }
  std::sort(besides.begin(), besides.end(), comes_first);
  besides.erase(std::unique(besides.begin(), besides.end()), besides.end());
  state.settled = gpus_around(state, std::move(besides));
}

bool is_settled_with(const Gang& gang, const Gpus& gpus) { return is_among(gpus, gang.members.front().gpu); }

std::set<GpuId> tied_to(const State& state, GpuId gpu) {
  std::set<GpuId> tied = {gpu};
  for (size_t before = 0; before != tied.size();) {
    before = tied.size();
    for (const auto& [id, gang] : state.gangs) {
      const std::set<GpuId> own = gpus_of(gang);
      if (gang.whole && std::any_of(own.begin(), own.end(), [&](GpuId other) { return tied.contains(other); }))
        tied.insert(own.begin(), own.end());
    }
  }
  return tied;
}

}  // namespace nvshare::policy
