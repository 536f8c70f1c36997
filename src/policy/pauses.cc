// Pauses: a client with a compute limit is not billed for the time in which it has nothing to do. A client that has the GPU to itself, or
// that runs together with whoever else is there, keeps the lock and says that it pauses, and says so again when it goes on: to ask for the
// lock anew in each pause took a program that pauses a hundred times a second 2 % of its speed (docs/adr/0012). All others give the lock
// up. A pause ends as soon as the client might not have gone on: others take turns with it, it is above its share, or memory is wanted.
#include <algorithm>

#include "policy/concerns.h"

namespace nvshare::policy {
namespace {

bool is_eligible(const State& state, const Gpu& gpu, const Client& client) {
  return gpu.quota.limited && gpu.quota.mode != GpuMode::kRotation && gang_of(state, client) == nullptr && !client.ends &&
         !client.last_turn;
}

// Others do not wait for it, and it would not wait for them.
bool runs_beside(const State& state, const Gpu& gpu, const Client& client) {
  return client.tenancy->account != nullptr && !Exclusive(state.config, gpu)(*client.tenancy->account);
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
  return client.holds_lock() || client.waits() || (client.turns > 0 && context.now - client.last_used < kAloneFor);
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
  if (!client.holds_lock() || client.grant != event.grant || client.paused_since) return;
  if (!client.turn_start) {  // it had loaded, and used nothing; that it has loaded is still on its way
    client.loads = false;
    client.turn_start = context.now;
  }
  client.usage.add(*client.turn_start + client.turn_without_room, context.now);
  learn_overlap(context, gpu, client, event.used, event.work);
  quota_turn_ended(context, gpu, client, true, note_unused_before_pause(context, gpu, client, event.used));
  client.turn_start.reset();
  client.turn_without_room = client.turn_carried = client.earned = 0;
  client.drain.succeeded();
  client.due_cap.reset();
  if (client.passing_since) gpu.switches.passing += context.now - *client.passing_since;
  client.passing_since.reset();
  client.paused_since = client.idle_since = client.last_used = context.now;
  recount(gpu, client);
  if (client.stays()) set_state(client, ClientState::kPaused, context.now);
}

void resume_turn(Context& context, Client& client) {
  if (!client.paused_since) return;
  quota_pause_ended(context, *client.home, client);
  client.paused_since.reset();
  client.idle_since.reset();
  client.turn_start = client.granted_at = context.now;
  ++client.turns;
  recount(client);
  if (client.state == ClientState::kPaused) set_state(client, ClientState::kRunning, context.now);
}

void end_pauses(Context& context, Gpu& gpu) {
  for (auto at = gpu.unsettled.begin(); at != gpu.unsettled.end();) {
    Client& client = *(at++)->second;
    if (client.state != ClientState::kPaused) continue;
    const Instant until = *client.paused_since + kPauseMost;
    if (is_eligible(context.state, gpu, client) && context.now < until && !stands_in_the_way(context.state, gpu, client)) {
      context.wake(gpu, until);
    } else {
      ask_one_to_drop(context, gpu, client,
                      "it pauses, and others wait for it or its pause has lasted");  // if it has a gang by now, the others go on
    }
  }
}

}  // namespace nvshare::policy
