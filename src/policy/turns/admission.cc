#include <deque>
#include <limits>
#include <tuple>

#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/memory/memory.h"
#include "policy/sharing/sharing.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

// How many clients share the GPU these days.
int64_t sharers(Gpu& gpu, Instant now) {
  while (!gpu.lately.empty() && now - gpu.lately.begin()->first >= kShareWindow) gpu.lately.erase(gpu.lately.begin());
  return std::ssize(gpu.holders) + std::ssize(gpu.waiting) + std::ssize(gpu.lately);
}

// It comes back after a pause of its own, or begins after one, and had less than half of its fair share of the time that it was here.
bool wakes_up(Gpu& gpu, const Client& client, Instant now) {
  const Instant without_since = client.totals.turns > 0 ? client.past.released_at : client.joined.at;
  if (!client.past.left_early && now - without_since < kOwnPause) return false;
  const Duration entitled = std::min(kShareWindow, now - client.joined.at) / std::max<int64_t>(sharers(gpu, now), 1);
  return client.past.usage.recent(now) < entitled / 2;
}

}  // namespace

Pressed::Pressed(const Config& config, Gpu& gpu) {
  if (all_may_fit(config, gpu)) return;
  std::vector<const Client*> pressed;
  for (const auto& [grant, client] : gpu.holders) {
    if (need(*client) > ceiling(config, gpu, *client)) pressed.push_back(client);
  }
  empty_ = pressed.empty();
  if (empty_) return;
  for (const auto& [id, client] : gpu.clients) {
    later_.push_back({client.joined.order, immovable(client) + (config.memory_reserve_percent ? 0 : overhead_of(config, client))});
  }
  const auto by_joined = [](const auto& a, const auto& b) { return a.joined < b.joined; };
  if (!std::is_sorted(later_.begin(), later_.end(), by_joined)) std::sort(later_.begin(), later_.end(), by_joined);
  for (size_t i = later_.size() - 1; i > 0; --i) later_[i - 1].bytes += later_[i].bytes;
  for (const Client* client : pressed) {
    const Bytes lacks = need(*client) - ceiling(config, gpu, *client);
    if (lacks <= taken_after(client->joined.order)) lacks_.push_back({client->joined.order, lacks});
  }
  std::sort(lacks_.begin(), lacks_.end(), by_joined);
  for (size_t i = 1; i < lacks_.size(); ++i) lacks_[i].bytes = std::max(lacks_[i].bytes, lacks_[i - 1].bytes);
}

Bytes Pressed::taken_after(uint64_t joined) const {
  const auto at =
      std::upper_bound(later_.begin(), later_.end(), joined, [](uint64_t than, const Part& part) { return than < part.joined; });
  return at == later_.end() ? 0 : at->bytes;
}

bool Pressed::crowded_by(const Client& comer) const {
  const auto older = std::upper_bound(lacks_.begin(), lacks_.end(), comer.joined.order,
                                      [](uint64_t than, const Part& part) { return than < part.joined; });
  return older != lacks_.begin() && std::prev(older)->bytes > taken_after(comer.joined.order);
}

Look::Look(const Context& context, Gpu& gpu)
    : as_of(gpu.recounted.times), now(context.state, gpu, {.dropping_released = false}, context.now), pressed(context.config(), gpu) {}

const Look& look_at(std::optional<Look>& look, const Context& context, Gpu& gpu) {
  if (!look || look->as_of != gpu.recounted.times) look.emplace(context, gpu);
  return *look;
}

bool fits_beside(const Context& context, const Gpu& gpu, const Head& head, std::span<const ClientId> comers) {
  if (!head.in_turn || head.as_of != gpu.recounted.times)
    head.in_turn.emplace(context.state, gpu, WhatIf{.comers = head.clients, .leavers = &head.plan.leavers}, context.now);
  head.as_of = gpu.recounted.times;
  std::vector<const Client*> besides;
  for (const ClientId id : comers) besides.push_back(&gpu.clients.at(id));
  return head.in_turn->room_with(besides).fits();
}

bool fits_when_departed_freed(const Context& context, const Gpu& gpu, std::span<const ClientId> clients) {
  return !gpu.departed.empty() && room_if(context.state, gpu, {.comers = clients, .departed_freed = true}, context.now).fits();
}

void ask_leavers_to_drop(Context& context, Gpu& gpu, const Switch& plan) {
  for (const ClientId leaver : plan.leavers) {
    Client& client = gpu.clients.at(leaver);
    if (!client.takes_place()) continue;
    client.turn.interrupted = plan.interrupted.contains(leaver);
    client.turn.interruption = plan.quantum;
    ask_to_drop(
        context, gpu, client,
        client.turn.interrupted ? "a program that wakes up, or ends, comes first" : "its turn is over, and others wait for its memory");
  }
}

namespace {

// May the comer, which fits now, go before the head? Only if the head's turn does not begin later for it.
bool may_pass(const Context& context, const Gpu& gpu, const Head& head, Client& comer) {
  if (fits_beside(context, gpu, head, only(comer))) return true;
  if (comer.drain.backoff.failures > 0 || comer.totals.failed_drains > 0 || comer.totals.unanswered_drops > 0) return false;
  // Not beside the head, so only until then, and only if that is worth the loading and takes nothing from the head.
  const Room room = room_if(context.state, gpu, {.comers = only(comer), .dropping_released = false}, context.now);
  Bytes elsewhere = 0;
  for (const auto& [id, client] : gpu.lockless.evictable) {
    const bool in_head = std::find(head.clients.begin(), head.clients.end(), id) != head.clients.end();
    if (!in_head && id != comer.id) elsewhere += movable(*client, context.now);
  }
  if (room.shortfall > elsewhere) return false;
  const Duration load = swap_time(gpu, room.shortfall, need(comer) - comer.memory.resident);
  if (head.plan.at - context.now <= load * (1 + context.config().switch_time_multiplier)) return false;
  comer.turn.due_cap = head.plan.at;
  return true;
}

Waiting waiting_of(const Gang& gang) {
  Waiting waiting;
  for (const Gang::Member& member : gang.members) {
    if (member.is->waits()) waiting[member.gpu].push_back(member.client);
  }
  return waiting;
}

WaitReason reason_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kRun:
      return WaitReason::kNone;
    case Verdict::kLimit:
      return WaitReason::kLimit;
    case Verdict::kShare:
      return WaitReason::kShare;
  }
  return WaitReason::kNone;
}

void set_reason(const Gpu& gpu, Client& client, Verdict verdict) {
  switch (verdict) {
    case Verdict::kRun:
      return;
    case Verdict::kLimit:
      return set_reason(client, WaitReason::kLimit, false);
    case Verdict::kShare:
      return set_reason(client, WaitReason::kShare, gpu.quota.mode == GpuMode::kRotation);
  }
}

// A compute limit keeps it, or another's share of the time. A client that could not have the lock whoever's turn it is has no part in turns
// of groups, so it keeps its reason: with another it would count in the next step, and end turns that are there because it does not.
bool not_now(Context& context, Gpu& gpu, Client& client) {
  const Verdict verdict = may_run(context.state, client);
  set_reason(gpu, client, verdict);
  if (verdict != Verdict::kRun) return true;
  if (cannot_have_it_soon(client.wait.reason) || has_share_turn(context, gpu, client)) return false;
  gpu.share_turn.held = true;
  set_reason(client, WaitReason::kShare, false);
  return true;
}

// Tells those that wait why, where their tenant's limit or share keeps them all. A tenant that was told is looked at again when that
// changes, or another client of it comes.
void hold_all_of(const Gpu& gpu, Account& account, Verdict verdict) {
  for (Client* client : account.here->waiting) set_reason(gpu, *client, verdict);
  account.held_for = reason_of(verdict);
  account.held_in_rotation = gpu.quota.mode == GpuMode::kRotation;
}

// It waits for others to leave. True: they were asked to.
bool await_switch(Context& context, Gpu& gpu, Client& client, const Switch& plan) {
  const auto waits_for = [&](WaitReason reason) { set_reason(client, reason, true); };
  waits_for(plan.doubtful ? WaitReason::kStuck : plan.leavers.empty() ? WaitReason::kDrain : WaitReason::kTurn);
  gpu.switches.cost = plan.cost;
  note_switch_time(context, gpu, plan);
  if (plan.at > context.now) {
    context.wake(gpu, plan.at);
    return false;
  }
  ask_leavers_to_drop(context, gpu, plan);
  if (!plan.leavers.empty() && !plan.doubtful) waits_for(WaitReason::kDrain);
  return true;
}

// True: others were asked to leave, with gangs on other GPUs, too.
bool admit_client(Context& context, Gpu& gpu, std::optional<Head>& head, std::optional<Look>& look, Client& client, bool wakes,
                  bool at_once) {
  if (not_now(context, gpu, client)) return false;
  const auto waits_for = [&](WaitReason reason, bool for_memory) {
    set_reason(client, reason, for_memory);
    return false;
  };
  const auto becomes_head = [&](Switch&& plan) {
    if (!head) head.emplace(only(client), std::move(plan));
  };
  if (client.evictions.current) {
    becomes_head({.at = context.now});
    return waits_for(WaitReason::kEviction, client.wait.for_memory);
  }
  if (look_at(look, context, gpu).pressed.crowded_by(client)) return waits_for(WaitReason::kCrowding, client.wait.for_memory);
  if (!head && need(client) > ceiling(context.config(), gpu, client)) return waits_for(WaitReason::kNeverFits, true);  // whoever leaves
  if (look_at(look, context, gpu).now.room_with(client).fits()) {
    if (!has_share_turn(context, gpu, client)) {  // from now on it has a part in them
      gpu.share_turn.held = true;
      return waits_for(WaitReason::kShare, false);
    }
    if (head && !may_pass(context, gpu, *head, client)) return waits_for(WaitReason::kQueue, client.wait.for_memory);
    grant(context, gpu, client);
    look.reset();
    return false;
  }
  if (head) return waits_for(WaitReason::kQueue, true);
  if (fits_when_departed_freed(context, gpu, only(client))) {
    becomes_head({.at = context.now});
    return waits_for(WaitReason::kDeparted, true);
  }
  std::optional<Switch> plan = plan_switch(context, gpu, {.clients = only(client), .wakes = wakes, .at_once = at_once});
  if (!plan) return waits_for(why_not_even_alone(context, gpu, only(client)), true);
  const bool asked = await_switch(context, gpu, client, *plan);
  if (asked) look.reset();
  if (!plan->doubtful) becomes_head(*std::move(plan));
  return asked;
}

bool gang_must_wait(Context& context, const Gang& gang) {
  bool must = false;
  for (const Gang::Member& member : gang.members) {
    if (member.is->waits()) must |= not_now(context, *member.on, *member.is);
  }
  return must;
}

// On one of them a limit, or turns of groups, may keep somebody waiting.
bool any_has_to_wait(const State& state, const Gpus& gpus) {
  return !state.limited.empty() || std::any_of(gpus.begin(), gpus.end(), [](const Gpu* gpu) { return gpu->share_turn.holds(); });
}

}  // namespace

bool knows_verdict(const Gpu& gpu, const Account& account, Verdict verdict) {
  return verdict != Verdict::kRun && account.held_for == reason_of(verdict) &&
         account.held_in_rotation == (gpu.quota.mode == GpuMode::kRotation);
}

// Not by waiting alone: something else has to change.
bool cannot_have_it_soon(WaitReason reason) {
  switch (reason) {
    case WaitReason::kHostMemory:
    case WaitReason::kNeverFits:
    case WaitReason::kStuck:
    case WaitReason::kCrowding:
      return true;
    case WaitReason::kNone:
    case WaitReason::kQueue:
    case WaitReason::kTurn:
    case WaitReason::kDrain:
    case WaitReason::kDeparted:
    case WaitReason::kEviction:
    case WaitReason::kGang:
    case WaitReason::kLimit:
    case WaitReason::kShare:
      return false;
  }
  return false;
}

WaitReason why_not_even_alone(const Context& context, const Gpu& gpu, std::span<const ClientId> clients) {
  for (const ClientId id : clients) {
    if (need(gpu.clients.at(id)) > ceiling(context.config(), gpu, gpu.clients.at(id))) return WaitReason::kNeverFits;
  }
  std::set<ClientId> leavers;
  for (const Client* other : in_place(gpu)) leavers.insert(other->id);
  if (room_if(context.state, gpu, {.comers = clients, .leavers = &leavers, .departed_freed = true}, context.now).fits())
    return WaitReason::kDeparted;
  const Obstacle obstacle = room_if(context.state, gpu, {clients, &leavers}, context.now).obstacle;
  return obstacle == Obstacle::kHostMemory ? WaitReason::kHostMemory : WaitReason::kStuck;
}

void request_lock(Context& context, Gpu& gpu, Client& client) {
  if (client.holds_lock() || client.waits()) return;
  if (context.state.suspended.contains(client.tenant) && !others_run(context.state, client)) {
    client.wait.asked = client.wait.while_suspended = true;
    note_member(client);
    return;
  }
  client.wait.woke =
      gang_of(context.state, client) == nullptr && !client.drain.overstay.comes_last(context.now) && wakes_up(gpu, client, context.now);
  note_share_wish(context, gpu, client);
  client.wait.asked = true;
  client.wait.arrival = context.state.next_arrival++;
  client.wait.since = context.now;
  client.wait.passed_at_start = gpu.switches.passing;
  client.wait.for_memory = false;
  client.wait.reason = client.noted.reason = WaitReason::kNone;
  set_state(client, ClientState::kWaiting, context.now);
}

void grant(Context& context, Gpu& gpu, Client& client) {
  const Bytes in = need(client) - client.memory.resident;
  client.turn.load_allowance = load_allowance(gpu, room_if(context.state, gpu, {only(client)}, context.now).shortfall, in);
  client.turn.loads = client.memory.allocated > client.memory.resident;
  if (client.wait.for_memory) {
    ++gpu.switches.count;
    if (client.wait.woke || client.last_turn.due) client.turn.passing_since = context.now;
  }
  limits_change(gpu);  // while it still waits
  client.grant = context.state.next_grant++;
  client.budget.bytes = client.budget.told = held(client);  // what was promised before may be on its way
  prefetch_ends(gpu, client);
  client.prefetches.unused = 0;
  client.prefetches.ended = false;
  client.budget.dirty = true;
  client.budget.slack_declined = client.turn.unproven = false;
  client.turn.granted_at = context.now;
  client.wait.woke = client.past.left_early = client.wait.for_memory = false;
  client.place = {};
  note_place(client);
  client.last_turn.runs = client.last_turn.due;
  client.wait.reason = WaitReason::kNone;
  ++client.totals.turns;
  note_work_begins(client);
  if (!client.turn.loads) client.turn.start = context.now;  // as start_running() has it, with all its memory there
  set_state(client, client.turn.loads ? ClientState::kLoading : ClientState::kRunning, context.now);
  note_grant(context, gpu, client);
}

// Where there are neither gangs, limits nor turns of groups. Behind the head stands who waits for memory, and waits on: of them only those
// are looked at that may fit by now.
static void admit_single(Context& context, Gpu& gpu, std::optional<Head>& head) {
  std::optional<Look> look;
  if (gpu.waiting.empty()) return;
  const PlaceTerms terms = refresh_queue(context, gpu);
  const auto admit_one = [&](Client& client) {
    const bool ends = client.last_turn.due && terms.wakers_pass;
    admit_client(context, gpu, head, look, client, ends || (client.wait.woke && terms.wakers_pass), ends && client.last_turn.ran == 0);
  };
  Place last{};
  for (auto at = gpu.queue.order.begin(); at != gpu.queue.order.end() && !head;) {
    last = at->first;
    const size_t waiting = gpu.queue.order.size();
    const auto next = std::next(at);
    admit_one(*at->second);
    at = gpu.queue.order.size() == waiting ? next : gpu.queue.order.upper_bound(last);
  }
  if (!head) return;
  const Look& now = look_at(look, context, gpu);
  const Bytes room = now.pressed.empty() ? now.now.room_left() : std::numeric_limits<Bytes>::max();  // else any may crowd them out
  for (Client* client : that_may_fit(gpu, last, room)) admit_one(*client);
}

using Places = std::vector<std::pair<Place, Client*>>;

// Whoever of a GPU's clients that wait may get the lock in this step, or has to hear of another reason.
static void add_waiting(Context& context, Gpu& gpu, Places& queue) {
  const bool limits_rest = gpu.quota.limited && gpu.quota.behind != nullptr;  // then they say what they said
  if (gpu.waiting.empty() || (limits_rest && gpu.queue.free.empty())) return;
  refresh_queue(context, gpu);
  const auto add = [&](Client* client) { queue.emplace_back(*client->indexed.queued.place, client); };
  const bool turns_hold = gpu.share_turn.held || gpu.share_turn.holds();
  if (!gpu.quota.limited || turns_hold || gpu.queue.ending > 0) {
    gpu.share_turn.held = gpu.share_turn.holds();
    for (const auto& [id, client] : gpu.waiting) add(client);
    return;
  }
  if (limits_rest) {
    std::for_each(gpu.queue.free.begin(), gpu.queue.free.end(), add);
    return;
  }
  Changes& changes = gpu.quota.changes;
  if (std::exchange(changes.hold_all, false)) {
    for (Account& account : gpu.quota.accounts) note_verdict(gpu.quota, account);
  }
  const Exclusive is_exclusive(context.config(), gpu);
  std::erase_if(changes.to_hold, [&](Account* account) {
    const bool waits = account->does.waits > 0;
    const Verdict verdict = may_run(is_exclusive, gpu.quota, *account);
    const bool runs = waits && verdict == Verdict::kRun;
    if (runs) {
      std::for_each(account->here->waiting.begin(), account->here->waiting.end(), add);
    }
    if (waits && !runs && !knows_verdict(gpu, *account, verdict)) hold_all_of(gpu, *account, verdict);
    account->seen.to_hold = runs;  // who may run and has to wait for memory is looked at in the next step, too
    return !runs;
  });
}

static void admit_waiting(Context& context, Gpu& gpu, std::optional<Head>& head, std::optional<Look>& look, Client& client) {
  const bool passes = gpu.queue.terms.wakers_pass, ends = client.last_turn.due && passes;
  admit_client(context, gpu, head, look, client, ends || (client.wait.woke && passes), ends && client.last_turn.ran == 0);
}

// Where there are no gangs, but limits, turns of groups, or several GPUs.
static void admit_each(Context& context, const Gpus& gpus, Heads& heads) {
  Places queue;
  for (Gpu* gpu : gpus) add_waiting(context, *gpu, queue);
  std::sort(queue.begin(), queue.end());
  Looks looks;
  for (const auto& [place, client] : queue) {
    Gpu& gpu = *client->indexed.home;
    admit_waiting(context, gpu, heads[gpu.id], looks[gpu.id], *client);
  }
}

// The same of one GPU.
static void admit_here(Context& context, Gpu& gpu, std::optional<Head>& head) {
  if (gpu.waiting.empty() || (gpu.quota.limited && gpu.quota.behind != nullptr && gpu.queue.free.empty())) return;
  Places queue;
  add_waiting(context, gpu, queue);
  std::sort(queue.begin(), queue.end());
  std::optional<Look> look;
  for (const auto& [place, client] : queue) admit_waiting(context, gpu, head, look, *client);
}

// Where there are gangs.
class AdmissionWithGangs {
 public:
  AdmissionWithGangs(Context& context, const Gpus& gpus)
      : context_(context), gpus_(gpus), may_have_to_wait_(any_has_to_wait(context.state, gpus)) {}

  void run() {
    bring_back_gangs();
    InOrder order(context_, gpus_);
    while (const Waiters* const waiters = order.next(heads_)) {
      const auto before = std::pair(context_.state.next_grant, context_.actions.size());
      admit(*waiters);
      if (before != std::pair(context_.state.next_grant, context_.actions.size())) {
        bring_back_that_may_fit(context_, looks_, gpus_);
        order.add_brought_back();
      }
    }
  }

 private:
  void bring_back_gangs() {
    if (may_have_to_wait_) return bring_back_all(gpus_);
    for (Gpu* gpu : gpus_) bring_back_due(context_, *gpu);
    bring_back_that_may_fit(context_, looks_, gpus_);
  }

  bool stays(const Waiters& waiters) {
    if (waiters.joins) return false;
    Gpu* const behind = stays_behind(context_, heads_, looks_, *waiters.gang);
    if (behind != nullptr && !may_have_to_wait_) put_off(context_, looks_, *waiters.gang, waiters.place, *behind);
    return behind != nullptr;
  }

  void admit_one(Client& client, bool wakes, bool at_once) {
    Gpu& gpu = *client.indexed.home;
    if (admit_client(context_, gpu, heads_[gpu.id], looks_[gpu.id], client, wakes, at_once)) looks_.clear();
  }

  void admit(const Waiters& waiters) {
    if (waiters.gang == nullptr) return admit_one(*waiters.client, waiters.wakes, waiters.ends && waiters.client->last_turn.ran == 0);
    Gang& gang = *waiters.gang;
    if ((may_have_to_wait_ && gang_must_wait(context_, gang)) || stays(waiters)) return;
    bring_back(gang);
    const Waiting& waiting = of_gangs_.emplace_back(waiting_of(gang));
    if (!waiters.joins) return admit_gang(context_, heads_, looks_, gang, waiting);
    if (complete_gang(context_, waiting)) return;
    for (const auto& [gpu_id, clients] : waiting) {
      for (const ClientId id : clients) admit_one(*context_.state.find(id), waiters.wakes, false);
    }
  }

  Context& context_;
  const Gpus& gpus_;
  const bool may_have_to_wait_;
  Heads heads_;
  Looks looks_;
  std::deque<Waiting> of_gangs_;  // heads name some of them
};

// Whose turn begins when those end that run now: what of its memory fits beside them may come in.
static void note_next(const Context& context, Gpu& gpu, const std::optional<Head>& head) {
  if (head && head->clients.size() == 1 && !head->plan.leavers.empty() && head->plan.at > context.now)
    gpu.prefetch.next = head->clients.front();
}

void admit(Context& context, const Gpus& gpus) {
  for (Gpu* gpu : gpus) gpu->prefetch.next.reset();
  if (!context.state.gangs.empty()) return AdmissionWithGangs(context, gpus).run();
  if (gpus.size() == 1) {
    Gpu& alone = *gpus.front();
    std::optional<Head> head;
    if (!alone.quota.limited && !alone.share_turn.group) {
      admit_single(context, alone, head);
    } else {
      admit_here(context, alone, head);
    }
    return note_next(context, alone, head);
  }
  Heads heads;
  admit_each(context, gpus, heads);
  for (const auto& [id, head] : heads) note_next(context, context.state.gpus.at(id), head);
}

}  // namespace nvshare::policy
