// Pauses: a client with a compute limit is not billed for the time in which it has nothing to do. A client that has the GPU to itself, or
// that runs together with whoever else is there, keeps the lock and says that it pauses, and says so again when it goes on: to ask for the
// lock anew in each pause took a program that pauses a hundred times a second 2 % of its speed (docs/adr/0012). All others give the lock
// up. A pause ends as soon as the client might not have gone on: others take turns with it, it is above its share, or memory is wanted.
#include <algorithm>

#include "policy/clients.h"
#include "policy/gangs/gangs.h"
#include "policy/limits/limits.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

bool is_eligible(const State& state, const Gpu& gpu, const Client& client) {
  return gpu.quota.limited && gpu.quota.mode != GpuMode::kRotation && gang_of(state, client) == nullptr && !client.last_turn.due &&
         !client.last_turn.runs;
}

// Others do not wait for it, and it would not wait for them.
bool runs_beside(const State& state, const Gpu& gpu, const Client& client) {
  return client.indexed.tenancy->account != nullptr && !Exclusive(state.config, gpu)(*client.indexed.tenancy->account);
}

bool memory_is_wanted(const Gpu& gpu) {
  return gpu.queue.memory_waiters > 0 || std::any_of(gpu.unsettled.begin(), gpu.unsettled.end(), [](const auto& entry) {
           return entry.second->stays() && entry.second->growth.has_value();
         });
}

// What another program that waits for a turn, or for room, has to have first.
bool stands_in_the_way(const State& state, const Gpu& gpu, const Client& client) {
  if (gpu.holders.size() + gpu.waiting.size() == 1) return false;
  return !runs_beside(state, gpu, client) || may_run(state, client) != Verdict::kRun || memory_is_wanted(gpu);
}

}  // namespace

// A neighbour that comes and goes would have it told each time: so it counts as there for a while.
static bool counts_as_there(const Context& context, const Client& client) {
  return client.holds_lock() || client.waits() || (client.totals.turns > 0 && context.now - client.past.last_used < kAloneFor);
}

int64_t count_there(const Context& context, const Gpu& gpu) {
  if (!gpu.quota.limited) return 0;
  int64_t there = std::ssize(gpu.holders) + std::ssize(gpu.waiting);
  for (auto at = gpu.lately.rbegin(); at != gpu.lately.rend() && there < 2 && context.now - at->first < kAloneFor; ++at) ++there;
  return there;
}

Duration may_pause(const Context& context, const Gpu& gpu, const Client& client, int64_t there) {
  if (!is_eligible(context.state, gpu, client)) return 0;
  const bool alone = there <= (counts_as_there(context, client) ? 1 : 0);
  return alone || runs_beside(context.state, gpu, client) ? kPauseAfter : 0;
}

void pause_turn(Context& context, Gpu& gpu, Client& client, const LockPaused& event) {
  // Without the lock, of a turn that is over, or it pauses already.
  if (!client.holds_lock() || client.grant != event.grant || client.turn.pause.since) return;
  if (!client.turn.start) {  // it had loaded, and used nothing; that it has loaded is still on its way
    client.turn.loads = false;
    client.turn.start = context.now;
  }
  client.past.usage.add(*client.turn.start + client.turn.without_room, context.now);
  note_burst_ended(context, gpu, client, event.used);
  learn_overlap(context, gpu, client, event.used, event.work);
  quota_turn_ended(context, gpu, client, true, note_unused_before_pause(context, gpu, client, event.used));
  client.turn.start.reset();
  client.turn.without_room = client.turn.carried = client.past.earned = 0;
  client.drain.backoff.succeeded();
  client.turn.due_cap.reset();
  if (client.turn.passing_since) gpu.switches.passing += context.now - *client.turn.passing_since;
  client.turn.passing_since.reset();
  client.turn.pause.since = client.turn.idle_since = client.past.last_used = context.now;
  recount(gpu, client);
  if (client.stays()) set_state(client, ClientState::kPaused, context.now);
}

void resume_turn(Context& context, Client& client) {
  if (!client.turn.pause.since) return;
  quota_pause_ended(context, *client.indexed.home, client);
  note_burst_begins(context, client);
  note_work_begins(client);
  client.turn.pause.since.reset();
  client.turn.idle_since.reset();
  client.turn.start = client.turn.granted_at = context.now;
  ++client.totals.turns;
  recount(client);
  if (client.state == ClientState::kPaused) set_state(client, ClientState::kRunning, context.now);
}

void end_pauses(Context& context, Gpu& gpu) {
  each_while_changing(gpu.unsettled, [&](Client* unsettled) {
    Client& client = *unsettled;
    if (client.state != ClientState::kPaused) return;
    const Instant until = *client.turn.pause.since + kPauseMost;
    if (is_eligible(context.state, gpu, client) && context.now < until && !stands_in_the_way(context.state, gpu, client)) {
      context.wake(gpu, until);
    } else {
      ask_one_to_drop(context, gpu, client,
                      "it pauses, and others wait for it or its pause has lasted");  // if it has a gang by now, the others go on
    }
  });
}

}  // namespace nvshare::policy
