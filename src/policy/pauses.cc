// Pauses: a client with a compute limit is not billed for the time in which it has nothing to do. Beside others it gives the lock up then.
// Who has the GPU to itself keeps the lock and says that it pauses, and says so again when it goes on: to ask for the lock anew in each
// pause took a program that pauses a hundred times a second 2 % of its speed (docs/adr/0012). Whoever else comes ends the pause first.
#include "policy/concerns.h"

namespace nvshare::policy {
namespace {

bool is_eligible(const State& state, const Gpu& gpu, const Client& client) {
  return gpu.quota.limited && gpu.quota.mode != GpuMode::kRotation && gang_of(state, client) == nullptr && !client.ends &&
         !client.last_turn;
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
  return there > (counts_as_there(context, client) ? 1 : 0) ? 0 : kPauseAfter;
}

void pause_turn(Context& context, Gpu& gpu, Client& client, const LockPaused& event) {
  // Without the lock, of a turn that is over, or it pauses already.
  if (!client.holds_lock() || client.grant != event.grant || client.paused_since) return;
  if (!client.turn_start) {  // it had loaded, and used nothing; that it has loaded is still on its way
    client.loads = false;
    client.turn_start = context.now;
  }
  client.usage.add(*client.turn_start + client.turn_without_room, context.now);
  quota_turn_ended(context, gpu, client, true, event.used);
  client.turn_start.reset();
  client.turn_without_room = client.turn_carried = client.earned = 0;
  client.drain.succeeded();
  client.due_cap.reset();
  if (client.passing_since) gpu.time_passing += context.now - *client.passing_since;
  client.passing_since.reset();
  client.paused_since = client.idle_since = client.last_used = context.now;
  recount(gpu, client);
  if (client.stays()) set_state(client, ClientState::kPaused, context.now);
}

void resume_turn(Context& context, Client& client) {
  if (!client.paused_since) return;
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
    const bool alone = gpu.holders.size() + gpu.waiting.size() == 1;
    if (alone && is_eligible(context.state, gpu, client) && context.now < until) {
      context.wake(gpu, until);
    } else {
      ask_one_to_drop(context, gpu, client,
                      "it pauses, and others come or its pause has lasted");  // if it has a gang by now, the others go on
    }
  }
}

}  // namespace nvshare::policy
