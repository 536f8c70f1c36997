#include "policy/reports/reports.h"

#include <cstdlib>
#include <utility>

#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/note_texts.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {

namespace {

Contenders counted(const Client& client) {
  const bool grows = client.stays() && client.growth;
  return {(client.waits() && client.wait.reason != WaitReason::kLimit) || grows, (client.waits() && client.wait.for_memory) || grows};
}

Contenders all_contenders(const Gpu& gpu) {
  Contenders all{gpu.queue.waiters, gpu.queue.memory_waiters};
  for (const auto& [id, client] : gpu.unsettled) {
    if (client->indexed.roles.waits) continue;  // it moves its memory out
    const Contenders one = counted(*client);
    all.waiters += one.waiters;
    all.memory_waiters += one.memory_waiters;
  }
  return all;
}

Contenders without(const Contenders& all, const Contenders& some) {
  return {all.waiters - some.waiters, all.memory_waiters - some.memory_waiters};
}

// By far another than one that was told.
bool is_other_cost(Duration told, Duration cost) { return cost > told / 2 * 3 || cost < told / 2; }

bool has_gangs(const Gpu& gpu) { return !gpu.gangs.by_need.empty(); }

// Those that may have to hear of it: where nothing has changed for all, those that have, whose gangs have, or that wait for memory
// themselves.
void find_to_tell(const Context& context, Gpu& gpu, const Contenders& all, bool limited, Duration idle, int64_t there) {
  std::vector<Client*>& clients = gpu.contention.to_tell;
  clients.clear();
  // Nobody may pause where several are there, so that limits are the same for all, but for gangs.
  const bool plain = !gpu.quota.limited || (there > 1 && !has_gangs(gpu));
  const bool held = std::exchange(gpu.contention.held, gpu.quota.limited);
  const bool rules_same = gpu.contention.limited == limited && gpu.contention.idle == idle && gpu.contention.held == held;
  const bool was_plain = gpu.contention.plain && rules_same;
  gpu.contention.plain = plain;
  gpu.contention.limited = limited;
  gpu.contention.idle = idle;
  const Contenders told = std::exchange(gpu.contention.contenders, {all.waiters > 0, all.memory_waiters > 0});
  const Duration cost = std::exchange(gpu.contention.cost, gpu.switches.cost);
  if (!plain || !was_plain) {
    gpu.contention.also_to_tell.clear();
    for (auto& [id, client] : gpu.clients) clients.push_back(&client);
    return;
  }
  clients.swap(gpu.contention.also_to_tell);
  for (const auto& [id, client] : gpu.unsettled) clients.push_back(client);
  for (const ClientId id : gpu.touched) {
    if (Client* const client = context.state.find(id); client != nullptr && client->indexed.home == &gpu) clients.push_back(client);
  }
  CostsTold& costs = gpu.contention.costs;
  const auto is_other = [&](Duration one) { return is_other_cost(one, gpu.switches.cost); };
  const bool other_cost = costs.any() && (is_other(costs.least) || is_other(costs.most));
  if (told != gpu.contention.contenders || (other_cost && cost != gpu.switches.cost && (all.memory_waiters > 0 || has_gangs(gpu)))) {
    costs = {};  // of these
    for (const auto& [grant, client] : gpu.holders) clients.push_back(client);
  }
  if (clients.size() < 2) return;
  std::sort(clients.begin(), clients.end(), [](const Client* a, const Client* b) { return a->id < b->id; });
  clients.erase(std::unique(clients.begin(), clients.end()), clients.end());
}

}  // namespace

const Contenders& ContentionCounts::on(const Gpu& gpu) {
  CountedContenders& counted = gpu.contention.counted;
  if (counted.counted_by != number_) counted = {number_, all_contenders(gpu)};
  return counted.all;
}

// The members of a gang go on together: it is dropped when any of its GPUs is wanted, and gives them up early only when all members do.
const Gang::Contention& ContentionCounts::of(const Gang& gang) {
  Gang::Contention& found = gang.contention;
  if (found.counted_by == number_) return found;
  found = {.counted_by = number_};
  for (size_t i = 0; i < gang.members.size();) {
    const Gpu& gpu = *gang.members[i].on;
    Contenders own;
    for (; i < gang.members.size() && gang.members[i].gpu == gpu.id; ++i) {
      const Client& member = *gang.members[i].is;
      const Contenders one = counted(member);
      own.waiters += one.waiters;
      own.memory_waiters += one.memory_waiters;
      found.holders += member.holds_lock();
    }
    const Contenders others = without(on(gpu), own);
    found.contenders.waiters = std::max(found.contenders.waiters, others.waiters);
    found.contenders.memory_waiters = std::max(found.contenders.memory_waiters, others.memory_waiters);
  }
  return found;
}

// Whether there are others than a gang's own clients, of which there are so many at most, may be another now.
static bool may_differ(uint32_t before, uint32_t now, size_t most) { return before != now && std::min(before, now) <= most; }

void find_gangs_to_tell(Context& context, const Gpus& gpus, ContentionCounts& counts) {
  GangChanges& changes = context.state.gang_changes;
  if (context.state.on_several.empty()) return;
  for (Gpu* gpu : gpus) {
    if (!has_gangs(*gpu)) continue;
    const Contenders now = counts.on(*gpu), before = std::exchange(gpu->gangs.contenders, now);
    const size_t most = gpu->gangs.most_members;
    if (!may_differ(before.waiters, now.waiters, most) && !may_differ(before.memory_waiters, now.memory_waiters, most)) continue;
    for (const auto& [key, spread] : gpu->gangs.by_need) {
      if (!std::exchange(spread->to_tell, true)) changes.to_tell.emplace(key.second.tenant, spread);
    }
  }
  std::vector<TenantId> told;
  for (const auto& [tenant, spread] : changes.to_tell) {
    if (!is_among(gpus, spread->on.begin()->first)) continue;
    spread->to_tell = false;
    told.push_back(tenant);
    for (const auto& [gpu_id, count] : spread->on) {
      Gpu& gpu = context.state.gpus.at(gpu_id);
      each_client(gpu, tenant, [&](Client& client) { gpu.contention.also_to_tell.push_back(&client); });
    }
  }
  for (const TenantId tenant : told) changes.to_tell.erase(tenant);
}

// No turn ends for an allocation of the gang's own, but a member beside it can give up what it has and does not need: the gang goes on only
// then, or, where that is on another GPU, waits for that for ever.
static int64_t growing_beside(const State& state, const Gpu& gpu, const Client& client, const Gang& gang) {
  return std::count_if(gpu.unsettled.begin(), gpu.unsettled.end(), [&](const auto& entry) {
    const Client& other = *entry.second;
    return other.id != client.id && other.stays() && other.growth && gang_of(state, other) == &gang;
  });
}

void report_contention(Context& context, Gpu& gpu, ContentionCounts& counts) {
  // In slices, and where bursts follow each other, a client gives the GPU up as soon as it is idle.
  const bool limited = gpu.quota.limited || gpu.share_turn.are_known();
  const Duration idle = idle_release(gpu);
  const Contenders all = context.state.gangs.empty() ? all_contenders(gpu) : counts.on(gpu);
  const int64_t there = count_there(context, gpu);
  find_to_tell(context, gpu, all, limited, idle, there);
  for (Client* const told : gpu.contention.to_tell) {
    Client& client = *told;
    const ClientId id = client.id;
    const Gang* gang = gang_of(context.state, client);
    const bool gang_runs = gang != nullptr && counts.of(*gang).holders > (client.holds_lock() ? 1 : 0);
    const Duration pause = may_pause(context, gpu, client, there);
    const Duration release_after = idle_release(gpu, client, idle);
    // A limit of any tenant's is a promise to the others, too. Members of a gang would go on without those whose memory is not there, and
    // their work would wait for them.
    const bool held = gpu.quota.limited || gang != nullptr || context.state.suspended.contains(client.tenant);
    const Sent::Rules rules{limited, release_after, gang_runs, pause, held};
    const bool rules_change = rules != client.sent.rules;
    if (!client.holds_lock() && !rules_change) continue;
    client.sent.rules = rules;
    if (!client.holds_lock()) {
      context.actions.push_back(SendContention{id, 0, 0, 0, limited, release_after, gang_runs, pause, held});
      continue;
    }
    auto [others, memory_others] = gang != nullptr ? counts.of(*gang).contenders : without(all, counted(client));
    if (gang != nullptr) memory_others += growing_beside(context.state, gpu, client, *gang);
    // How long the library sits out a pause goes by the cost, which first swaps may show to be another by far.
    const bool other_cost = memory_others > 0 && is_other_cost(client.sent.cost, gpu.switches.cost);
    // How many they are changes nothing for the library, and with hundreds of holders each message to all of them is hundreds of answers.
    const bool same = (others > 0) == (client.sent.waiters > 0) && (memory_others > 0) == (client.sent.memory_waiters > 0) && !other_cost;
    if (memory_others > 0) gpu.contention.costs.add(same && !rules_change ? client.sent.cost : gpu.switches.cost);
    if (same && !rules_change) continue;
    client.sent.waiters = others;
    client.sent.memory_waiters = memory_others;
    client.sent.cost = gpu.switches.cost;
    context.actions.push_back(SendContention{id, others, memory_others, gpu.switches.cost, limited, release_after, gang_runs, pause, held});
  }
}

namespace {

bool is_worth_telling(const Gpu& gpu, const Client& client, Bytes most) {
  if (!client.sent.ceiling) return true;
  const Bytes fell = *client.sent.ceiling - most;
  if (fell <= 0 || gpu.clients.size() <= kCeilingsAtOnce) return std::abs(fell) >= kCeilingStep;
  return fell >= std::max(kCeilingStep, (*client.sent.ceiling - need(client)) / kCeilingPart);
}

void tell_ceiling(Context& context, Gpu& gpu, Client& client) {
  const Bytes most = ceiling(context.config(), gpu, client);
  if (!is_worth_telling(gpu, client, most)) return;
  client.sent.ceiling = most;
  context.actions.push_back(SendCeiling{client.id, most});
}

// One client that comes or goes changes the ceilings of all: with many of them each is told once in kCeilingsWithin, and when it says
// something itself, not for each that comes or goes.
void tell_some_ceilings(Context& context, Gpu& gpu) {
  if (gpu.ceilings.left == 0) return;
  if (context.now < gpu.ceilings.at) return context.wake(gpu, gpu.ceilings.at);
  auto at = gpu.clients.lower_bound(gpu.ceilings.next);
  for (size_t i = 0; i < kCeilingsAtOnce && gpu.ceilings.left > 0; ++i, --gpu.ceilings.left) {
    if (at == gpu.clients.end()) at = gpu.clients.begin();
    tell_ceiling(context, gpu, (at++)->second);
  }
  gpu.ceilings.next = at == gpu.clients.end() ? 0 : at->first;
  gpu.ceilings.at = context.now + kCeilingsWithin / static_cast<Duration>(gpu.clients.size() / kCeilingsAtOnce + 1);
  if (gpu.ceilings.left > 0) context.wake(gpu, gpu.ceilings.at);
}

}  // namespace

void report_ceilings(Context& context, Gpu& gpu) {
  const std::optional<ClientId> speaks = std::exchange(gpu.ceilings.speaks, std::nullopt);
  const Bytes base = safe_limit(context.config(), gpu) - gpu.sums.immovable;
  if (gpu.ceilings.due || base != gpu.ceilings.base) gpu.ceilings.left = gpu.clients.size();
  gpu.ceilings.due = false;
  gpu.ceilings.base = base;
  if (gpu.clients.size() <= kCeilingsAtOnce) {
    if (std::exchange(gpu.ceilings.left, 0) == 0) return;
    for (auto& [id, client] : gpu.clients) tell_ceiling(context, gpu, client);
    return;
  }
  if (Client* const client = speaks ? context.state.find(*speaks) : nullptr; client != nullptr && client->indexed.home == &gpu)
    tell_ceiling(context, gpu, *client);
  tell_some_ceilings(context, gpu);
}

// For a client whose own GPU would do.
static std::string gang_sentence(const State& state, const Client& client) {
  const Gang* gang = gang_of(state, client);
  if (!gang) return "its gang";
  for (const Gang::Member& member : gang->members) {
    const Gpu& gpu = *member.on;
    const Client& other = *member.is;
    const std::string who = "client " + std::to_string(other.id) + " on GPU " + std::to_string(gpu.id);
    if (other.state == ClientState::kDropping) return "its gang's turn to end: " + who + " is still dropping";
    if (other.waits() && other.wait.reason != WaitReason::kGang && other.id != client.id)
      return "its gang: " + who + " waits for " + waiting_sentence(state, gpu, other);
  }
  return "another gang to leave, which could come to wait for this one";
}

// For the client to have its turn if all others gave up theirs.
static Room room_alone(const State& state, const Gpu& gpu, const Client& client) {
  std::set<ClientId> leavers;
  for (const auto& [id, other] : gpu.clients) {
    if (other.stays()) leavers.insert(id);
  }
  return room_if(state, gpu, {.comers = only(client), .leavers = &leavers, .evictions_succeed = true}, 0);
}

static std::string host_sentence(const State& state, const Gpu& gpu, const Client& client) {
  const Room room = room_alone(state, gpu, client);
  const Bytes left = room.host_needed > 0 ? std::max<Bytes>(room.host_room, 0) : host_room(state);
  return "host memory: to make room for its " + mib(need(client)) + " neighbours would have to move more than the " + mib(left) +
         " left; " + mib(std::max<Bytes>(room.host_needed - left, 0)) + " are missing";
}

std::string waiting_sentence(const State& state, const Gpu& gpu, const Client& client) {
  const auto wants = [&] { return mib(need(client)); };  // most clients wait for nothing
  if (client.holds_lock()) {
    if (client.growth) return mib(client.growth->wanted) + " more GPU memory";
    if (client.state == ClientState::kLoading && client.budget.bytes < need(client)) return "neighbours to move out, of its " + wants();
    return {};
  }
  if (client.wait.while_suspended) return "its tenant to be resumed: it was paused";
  if (!client.waits()) return {};
  switch (client.wait.reason) {
    case WaitReason::kNone:
    case WaitReason::kQueue:
      return "its place in the queue";
    case WaitReason::kTurn:
      return "a neighbour's turn to end: it needs " + wants();
    case WaitReason::kDrain:
      return "a neighbour's work to drain: it needs " + wants();
    case WaitReason::kDeparted:
      return "the memory of a dead client to be freed: it needs " + wants();
    case WaitReason::kEviction:
      return "its own memory to finish moving out";
    case WaitReason::kHostMemory:
      return host_sentence(state, gpu, client);
    case WaitReason::kNeverFits:
      return "memory that this GPU does not have: it needs " + wants() + ", at most " + mib(ceiling(state.config, gpu, client)) +
             " are possible now";
    case WaitReason::kStuck:
      return "memory that its neighbours cannot give up at present: it needs " + wants();
    case WaitReason::kCrowding:
      return "an older client that would not fit beside its context";
    case WaitReason::kGang:
      return gang_sentence(state, client);
    case WaitReason::kLimit:
      return "its compute limit to allow more";
    case WaitReason::kShare:
      return "another tenant's share of the GPU's time to be over";
  }
  return {};
}

static void note_wait(Context& context, const Gpu& gpu, Client& client) {
  const bool for_limit =
      client.wait.reason == WaitReason::kLimit || client.wait.reason == WaitReason::kShare;  // what is throttled has a line
  const bool told = !for_limit && client.wait.reason != WaitReason::kNone && is_note_due(client.noted.wait_at, context.now);
  if (!told && !context.config().explains) return;
  client.noted.reason = client.wait.reason;
  if (told) client.noted.wait_at = context.now;
  recount(client);
  const Neighbours holders = holders_beside(gpu, client);
  std::string text = "waits for " + waiting_sentence(context.state, gpu, client);
  if (holders.all > 0) text += "; " + list_of(holders) + (holders.all == 1 ? " has" : " have") + " the lock";
  context.note(told ? Note::Level::kInfo : Note::Level::kDebug, client.id, std::move(text));
}

void report_waits(Context& context, Gpu& gpu) {
  std::vector<ClientId> due;
  if (context.config().explains) {
    for (const auto& [id, client] : gpu.waiting) {
      if (client->wait.reason != client->noted.reason) due.push_back(id);
    }
  } else {
    for (const auto& [at, id] : gpu.queue.unnoted) {
      if (at > context.now) break;
      due.push_back(id);
    }
  }
  std::sort(due.begin(), due.end());
  for (const ClientId id : due) {
    Client& client = *gpu.waiting.at(id);
    if (!cannot_have_it_soon(client.wait.reason)) {
      note_wait(context, gpu, client);
      continue;
    }
    client.noted.reason = client.wait.reason;
    recount(gpu, client);
    context.note(Note::Level::kWarning, id, "waits for " + waiting_sentence(context.state, gpu, client));
  }
}

}  // namespace nvshare::policy
