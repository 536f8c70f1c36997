#include "fleet/shared_gpu.h"

#include <algorithm>
#include <variant>

namespace nvshare::fleet {
namespace {

using What = GpuEvent::What;

constexpr int64_t kChunk = 8 * kGiB;
constexpr Nanoseconds kDrain = 3'000'000;
constexpr Nanoseconds kIdlePatience = kSecond;  // from its last work until it gives the lock up, while others wait
constexpr policy::GpuId kTheGpu = 0;

Nanoseconds nanoseconds(double seconds) { return static_cast<Nanoseconds>(seconds * kSecond) + 1; }

}  // namespace

SharedGpu::SharedGpu(const Machine& machine, const SharedGpuHooks& hooks, Nanoseconds now)
    : machine_(machine), hooks_(hooks), state_(policy::make_state(policy::Config())), now_(now) {
  feed(policy::GpuAppeared{kTheGpu, machine.memory});
  report_host();
}

SharedGpu::Client* SharedGpu::find(policy::ClientId id) {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : &found->second;
}

policy::ClientId SharedGpu::join(int job, const Job& made, Nanoseconds now) {
  now_ = now;
  Client& client = clients_[++last_client_];
  client.id = last_client_;
  client.job = job;
  client.kind = made.kind;
  client.session = is_session(made.kind);
  client.random = Random(made.seed);
  client.full_rate = rate_of(made.kind);
  client.rate = std::min(client.full_rate, made.cores_asked / 100.0);
  client.alone_left = made.seconds;
  client.memory.allocated = made.memory;
  feed(policy::ClientJoined{client.id, kTheGpu, client.id, 0, client.memory, true, false, false});
  next_phase_of(client);
  advance(client);
  return client.id;
}

void SharedGpu::leave(policy::ClientId id, Nanoseconds now) {
  now_ = now;
  Client* client = find(id);
  if (client == nullptr) return;
  pause(*client);
  sums_.host -= client->host;
  clients_.erase(id);
  feed(policy::ClientLeft{id, true});
  report_host();
}

void SharedGpu::schedule(Nanoseconds after, What what, Client& client) { hooks_.at(now_ + after, {what, client.id, client.version}); }

void SharedGpu::feed(const policy::Event& event) {
  events_.push_back(event);
  if (feeding_) return;
  feeding_ = true;
  while (!events_.empty()) {
    const policy::Event next = std::move(events_.front());
    events_.pop_front();
    ++sums_.steps;
    for (const policy::Action& action : policy::step(*state_, next, now_)) take(action);
  }
  feeding_ = false;
  watch_deadline();
}

void SharedGpu::watch_deadline() {
  const auto deadline = policy::next_deadline(*state_);
  if (!deadline) {
    tick_at_.reset();
    return;
  }
  const Nanoseconds when = std::max(*deadline, now_);
  if (tick_at_ == when) return;
  tick_at_ = when;
  hooks_.at(when, {What::kTick, 0, ++tick_version_});
}

void SharedGpu::take(const policy::Action& action) {
  if (const auto* lock = std::get_if<policy::SendLock>(&action)) return take_lock(*lock);
  if (const auto* drop = std::get_if<policy::SendDrop>(&action)) {
    Client* client = find(drop->client);
    if (client == nullptr || !client->has_lock || client->grant != drop->grant || client->dropping) return;
    ++sums_.drops;
    pause(*client);
    client->dropping = true;
    return hooks_.at(now_ + kDrain, {What::kDrained, client->id, client->grant});
  }
  if (const auto* evict = std::get_if<policy::SendEvict>(&action)) {
    Client* client = find(evict->client);
    if (client == nullptr) return;
    client->eviction = evict->eviction;
    client->to_move = evict->bytes;
    client->moved = 0;
    client->move_began = now_;
    if (!client->moving) move_out(*client);
    return;
  }
  if (const auto* contention = std::get_if<policy::SendContention>(&action)) {
    Client* client = find(contention->client);
    if (client == nullptr) return;
    client->waiters = contention->waiters + contention->memory_waiters;
    if (client->waiters > 0 && client->has_lock && !client->works) schedule(kIdlePatience, What::kIdleTooLong, *client);
  }
}

void SharedGpu::take_lock(const policy::SendLock& lock) {
  Client* client = find(lock.client);
  if (client == nullptr) return;
  if (!client->has_lock) {
    client->has_lock = true;
    client->requested = client->dropping = false;
    client->grant = lock.grant;
    client->waiters = 0;
    ++sums_.turns;
  }
  client->budget = lock.budget;
  load(*client);
}

void SharedGpu::next_phase_of(Client& client) {
  client.phase = next_phase(client.kind, client.random);
  if (!client.session) {
    client.phase.work = std::min(client.phase.work, client.alone_left * client.full_rate);
    client.alone_left -= client.phase.work / client.full_rate;
    client.phase.idle = std::min(client.phase.idle, std::max(client.alone_left, 0.0));
    client.alone_left -= client.phase.idle;
    client.last_phase = client.alone_left <= 1e-6;
  }
  client.works = true;
  client.wanted_at = now_;
  client.burst_work = client.phase.work;
}

// Does what it can do now.
void SharedGpu::advance(Client& client) {
  if (!client.works || client.running_since) return;
  if (!client.has_lock) {
    if (!client.requested) {
      client.requested = true;
      feed(policy::LockRequested{client.id});
    }
    return;
  }
  if (client.dropping || client.memory.resident < client.memory.allocated) return;
  client.running_since = now_;
  ++client.version;
  schedule(nanoseconds(client.phase.work / client.rate), What::kWorkDone, client);
}

void SharedGpu::pause(Client& client) {
  if (!client.running_since) return;
  hooks_.worked(*client.running_since, now_, client.rate);
  client.phase.work = std::max(client.phase.work - static_cast<double>(now_ - *client.running_since) / kSecond * client.rate, 0.0);
  client.running_since.reset();
  ++client.version;
}

void SharedGpu::load(Client& client) {
  if (client.dropping || client.loading) return;
  const int64_t room = std::min(client.memory.allocated, client.budget) - client.memory.resident;
  if (client.memory.resident >= client.memory.allocated) return advance(client);
  if (room <= 0) return;
  client.loading = true;
  client.chunk = std::min(room, kChunk);
  client.chunk_began = now_;
  // What has no copy in host memory was never written: it comes without a copy.
  const double copied = static_cast<double>(std::min(client.chunk, client.host));
  hooks_.at(now_ + nanoseconds(copied / machine_.link), {What::kLoaded, client.id, client.grant});
}

void SharedGpu::loaded(Client& client) {
  client.loading = false;
  if (!client.has_lock || client.dropping) return;
  const int64_t in = std::min(client.chunk, client.memory.allocated - client.memory.resident);
  const int64_t copied = std::min(in, client.host);
  client.memory.resident += in;
  client.host -= copied;
  sums_.host -= copied;
  sums_.moved_in += copied;
  int64_t resident = 0;
  for (const auto& [id, other] : clients_) resident += other.memory.resident;
  if (resident > machine_.memory) sums_.broken = "more is resident than the GPU has";
  const bool all = client.memory.resident == client.memory.allocated;
  const policy::ClientId id = client.id;
  feed(policy::SwapProgressed{id, false, all, false, client.grant, copied, now_ - client.chunk_began, client.memory});
  if (copied > 0 && all) report_host();
  if (Client* still = find(id)) load(*still);
}

void SharedGpu::move_out(Client& client) {
  const int64_t part = std::min({kChunk, client.to_move - client.moved, client.memory.resident});
  const bool no_room = part > 0 && sums_.host + part > machine_.host;
  if (part <= 0 || no_room) {
    client.moving = false;
    return feed(
        policy::SwapProgressed{client.id, true, true, no_room, client.eviction, client.moved, now_ - client.move_began, client.memory});
  }
  client.moving = true;
  client.host += part;
  sums_.host += part;
  sums_.host_peak = std::max(sums_.host_peak, sums_.host);
  sums_.moved_out += part;
  client.memory.resident -= part;  // no work of it is under way
  client.moved += part;
  hooks_.at(now_ + nanoseconds(static_cast<double>(part) / machine_.link), {What::kMovedOut, client.id, 0});
}

void SharedGpu::moved_out(Client& client) {
  const policy::ClientId id = client.id;
  feed(policy::SwapProgressed{id, true, false, false, client.eviction, client.moved, now_ - client.move_began, client.memory});
  if (Client* still = find(id)) move_out(*still);
}

void SharedGpu::report_host() { feed(policy::HostMemory{std::max<int64_t>(machine_.host - sums_.host, 0)}); }

void SharedGpu::release(Client& client, bool early, Nanoseconds idle) {
  client.has_lock = client.dropping = false;
  const policy::ClientId id = client.id;
  feed(policy::LockReleased{id, client.grant, client.memory, early, idle, {}});
  if (Client* still = find(id)) advance(*still);
}

void SharedGpu::finish_burst(Client& client) {
  pause(client);
  client.phase.work = 0;
  client.works = false;
  hooks_.burst({client.kind, static_cast<double>(now_ - client.wanted_at) / kSecond - client.burst_work / client.full_rate});
  if (client.last_phase && client.phase.idle <= 1e-6) return hooks_.finished(client.job);
  schedule(nanoseconds(client.phase.idle), What::kIdleOver, client);
  if (client.waiters > 0) schedule(kIdlePatience, What::kIdleTooLong, client);
}

void SharedGpu::handle(const GpuEvent& event, Nanoseconds now) {
  now_ = now;
  if (event.what == What::kTick) {
    if (event.version != tick_version_) return;
    tick_at_.reset();
    return feed(policy::Tick{});
  }
  Client* client = find(event.client);
  if (client == nullptr) return;
  switch (event.what) {
    case What::kWorkDone:
      if (event.version == client->version && client->running_since) finish_burst(*client);
      return;
    case What::kIdleOver:
      if (client->works) return;
      if (client->last_phase) return hooks_.finished(client->job);
      next_phase_of(*client);
      return advance(*client);
    case What::kLoaded:
      if (event.version == client->grant) return loaded(*client);
      client->loading = false;  // of a turn that has ended
      return client->has_lock ? load(*client) : void();
    case What::kMovedOut:
      return moved_out(*client);
    case What::kDrained:
      if (client->dropping && event.version == client->grant) release(*client, false, 0);
      return;
    case What::kIdleTooLong:
      if (client->has_lock && !client->dropping && !client->works && client->waiters > 0) release(*client, true, kIdlePatience);
      return;
    case What::kTick:
      return;
  }
}

}  // namespace nvshare::fleet
