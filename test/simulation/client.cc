#include "client.h"

#include <algorithm>
#include <utility>

#include "process.h"
#include "protocol/directions.h"
#include "run.h"

namespace nvshare::simulation {

using protocol::MessageType;

namespace {
constexpr Duration kReconnectFirst = 20 * kMs;
constexpr Duration kReconnectMost = kSec;
}  // namespace

Client::Client(Process& process, size_t place, int gpu)
    : process_(process),
      place_(place),
      gpu_(gpu),
      host_({[this](Duration delay, std::function<void()> what) { process_.later(delay, std::move(what)); },
             [this] { return process_.wake_time(); }, [this] { mover_may_go_on(); },
             [this] {
               if (!std::exchange(arena_dirty_, true)) wake_link();
             },
             [this] { memory_changed(); }}),
      evictions_to_fail_(process.plan().evictions_to_fail),
      loads_to_fail_(process.plan().loads_to_fail) {}

Instant Client::now() const { return process_.run().world().now(); }
Run& Client::run() { return process_.run(); }

void Client::start() {
  turn_.disconnected_at = now();
  step(turn::ContextChanged{true});
  link_in(0);
}

void Client::process_ended() {
  if (connection_ != 0) run().node().hang_up(connection_);
  connection_ = 0;
  turn_.connected = false;
}

bool Client::at_rest() const {
  return link_ == Link::kUp && turn_.connected && inbox_.empty() && !hung_up_ && !link_wakes_ && !memory_dirty_ && !arena_dirty_ &&
         !swap_engine_busy_ && !mover_wakes_ && jobs_.empty();
}

protocol::MemoryReport Client::report() const {
  const auto bytes = [](Bytes value) { return static_cast<uint64_t>(value); };
  const Bytes all = std::max(allocated_, resident_);
  const Bytes ready = process_.run().plan().host_lent ? host_.ready() : all - resident_;
  return {bytes(all), bytes(resident_), 0, bytes(ready), lease_.charged()};
}

// ---- the turn ----

turn::Effects Client::step(const decltype(turn::Event::what)& event) {
  decltype(turn::Event::what) what = event;
  sabotage(what);
  turn::Event whole{{}, what};
  turn::Seen& seen = whole.seen;
  seen.submissions = process_.submissions();
  seen.entries = process_.entries();
  seen.waited_at = process_.waited_at();
  seen.waited_after = run().canary() == Canary::kWorkSinceWaitOverlooked ? seen.entries : process_.waited_after();
  seen.waiting = process_.waiting() > 0;
  seen.capturing = process_.capturing();
  seen.other_gpus = process_.holds_other_gpu(*this);
  seen.first_use = first_use_;
  seen.longest_work_ns = process_.longest_kernel();
  const turn::Phase before = turn_.phase;
  const turn::Effects effects = turn::step(turn_, whole, now());
  if (effects.count() > turn::Effects::kMost) run().world().fail("more effects than there is room for");
  if (before != turn_.phase) {
    constexpr const char* kPhases[] = {"out", "loading", "running", "paused", "draining"};
    run().world().tell("program {} GPU {}: {}", process_.plan().number, gpu_, kPhases[static_cast<int>(turn_.phase)]);
  }
  for (const turn::Effect& effect : effects) {
    if (!swallowed(effect)) std::visit([this](const auto& one) { carry_out(one); }, effect);
  }
  mover_may_go_on();
  process_.client_changed();
  if (turn::next_deadline(turn_) < timer_) link_in(0);
  return effects;
}

void Client::mover_may_go_on() {
  if (!on_change_) return;
  process_.later(process_.wake_time(), [this] {
    if (const auto look = std::exchange(on_change_, nullptr)) look();
  });
}

void Client::sabotage(decltype(turn::Event::what)& what) {
  switch (run().canary()) {
    case Canary::kLoadIgnoresDrop:
      if (std::holds_alternative<protocol::DropLock>(what) && turn_.phase == turn::Phase::kLoading) what = turn::MemoryLeft{};
      return;
    case Canary::kStaleGrantTaken:
      if (auto* ok = std::get_if<protocol::LockOk>(&what); ok != nullptr && turn_.phase == turn::Phase::kOut)
        turn_.grant = {ok->grant.epoch, 0};
      return;
    case Canary::kDropInPauseIgnored:
      if (std::holds_alternative<protocol::DropLock>(what) && turn_.phase == turn::Phase::kPaused) what = turn::MemoryLeft{};
      return;
    case Canary::kMovesUntold:
      if (std::holds_alternative<protocol::SwapProgress>(what) && !turn_.connected) what = turn::MemoryLeft{};
      return;
    case Canary::kAloneWhileRegistering:
      if (auto* registering = std::get_if<turn::Registering>(&what)) registering->begins = false;
      return;
    default:  // elsewhere
      return;
  }
}

bool Client::swallowed(const turn::Effect& effect) {
  switch (run().canary()) {
    case Canary::kWishLostAtRelease:
      if (!std::holds_alternative<turn::LookForWaiters>(effect)) return false;
      wish_known_ = false;
      return true;
    case Canary::kGrowthNotAskedAnew:
      return std::holds_alternative<turn::MemoryReportDue>(effect);
    case Canary::kBudgetNotRaised:
      return std::holds_alternative<turn::SetBudget>(effect) && turn_.phase == turn::Phase::kLoading && swap_engine_busy_;
    case Canary::kNotDrainedUnsaid: {
      const auto* released = std::get_if<protocol::LockReleased>(&effect);
      return released != nullptr && released->reason == static_cast<uint8_t>(protocol::ReleaseReason::kNotDrained);
    }
    case Canary::kHeadroomNotAskedAnew:
      return std::holds_alternative<turn::TryLease>(effect);
    default:  // elsewhere
      return false;
  }
}

void Client::carry_out(const turn::OpenGate&) { process_.open_gate(place_); }
void Client::carry_out(const turn::CloseGate&) { process_.close_gate(place_); }
void Client::carry_out(const turn::WakeGate&) { process_.wake_gate(); }
void Client::carry_out(const turn::LookForWaiters&) {
  wish_known_ = false;
  step(turn::WaitersSeen{process_.waiting() > 0});
}
void Client::carry_out(const turn::WatchIdle&) {
  ++watch_;
  watching_ = true;
  look_at_ = now();
  mover_looks();
}
void Client::carry_out(const turn::SendMemory& effect) {
  send(turn::memory_update(turn_, effect, report(), static_cast<uint64_t>(budget_)));
}
void Client::carry_out(const turn::AskHeadroom& effect) {
  const uint64_t returned = lease_.give_back(protocol::kLeaseMax);
  send(protocol::AskHeadroom{effect.request, effect.bytes, returned});
}
void Client::carry_out(const protocol::LockReleased& message) {
  protocol::LockReleased full = message;
  drop_since_ = 0;
  if (!turn::holds_lock(turn_)) memory_dirty_ = false;
  full.memory = report();
  send(full);
}

void Client::send_packet(const char* name, const Packet& packet) {
  run().world().tell("program {} GPU {} -> {}", process_.plan().number, gpu_, name);
  run().node().send_packet(connection_, packet);
}

// ---- threads of the program ----

void Client::want_lock() {
  if (std::exchange(wish_known_, true)) return;
  const Instant at = now();
  // The thread is between its mark and the mutex.
  process_.later(process_.random().chance(80) ? 0 : process_.wake_time(), [this, at] { step(turn::Wished{at, memory_dirty_}); });
}

Client::Room Client::allocate(Bytes bytes) {
  if (process_.gate_closed(place_)) {
    if (turn_.phase == turn::Phase::kDraining) return Room::kWait;
    if (turn_.gang_runs) return Room::kJoin;
  }
  // Without a scheduler others help themselves, too: the driver says what is left.
  if (running_ && turn::alone(turn_) && run().free_on(gpu_) < bytes) budget_ = resident_;
  const bool room = running_ ? resident_ + bytes <= budget_ : allocated_ + bytes <= ceiling_;
  if (!room) return running_ ? Room::kGrow : Room::kNever;
  if (running_ && run().driver_has_on(gpu_) < bytes) return Room::kShort;
  allocated_ += bytes;
  if (running_) resident_ += bytes;
  memory_changed();
  return Room::kGot;
}

void Client::release(Bytes bytes) {
  const Bytes freed = std::min(bytes, allocated_);
  allocated_ -= freed;
  const Bytes held = std::min(freed, came_in_);
  came_in_ -= held;
  freed_ += held;
  resident_ = freed_ + std::min(resident_ - freed_, allocated_);
  if (host_.used() > allocated_) host_.give_back(host_.used() - allocated_);
  copied_ = std::min({copied_, resident_, host_.used()});
  lease_.refund(static_cast<uint64_t>(freed));
  memory_changed();
}

// The turn hears of it first, then its memory goes.
bool Client::end_context() {
  if (swap_engine_busy_) return false;
  step(turn::ContextChanged{false});
  release(allocated_);
  if (run().canary() == Canary::kContextEndUntold) memory_dirty_ = false;
  return true;
}

bool Client::grow_alone(Bytes bytes) {
  if (!turn::helps_itself(turn_, now())) return false;
  if (run().free_on(gpu_) < bytes) return false;
  step(turn::GrowthAlone{static_cast<uint64_t>(std::max(budget_, resident_ + bytes))});
  grown_alone_ += bytes;
  return true;
}

void Client::memory_changed() {
  if (!std::exchange(memory_dirty_, true)) wake_link();
}

// ---- the socket's thread ----

void Client::link_in(Duration least) {
  if (link_wakes_ && least == 0) return;
  if (least == 0) link_wakes_ = true;
  process_.later(least + process_.wake_time(), [this, least] {
    if (least == 0) link_wakes_ = false;
    link_looks();
  });
}

void Client::link_looks() {
  receive();
  if (link_ == Link::kRegisters) return;  // it waits for the answer, and for nothing else
  if (link_ == Link::kNone && now() >= reconnect_at_) connect();
  if (link_ == Link::kRegisters) return;
  if (link_ == Link::kNone) go_on_alone();
  flush();
  step(turn::Tick{});
  schedule_timer();
}

void Client::go_on_alone() {
  if (!turn::may_go_on_alone(turn_, now()) || swap_engine_busy_ || !jobs_.empty() || resident_ != allocated_) return;
  runs();
  if (!step(turn::GoesOnAlone{static_cast<uint64_t>(resident_)}).agreed) running_ = false;
}

void Client::on_drop(const protocol::DropLock& message) {
  const bool asked = message.grant.epoch == turn_.grant.epoch && message.grant.grant == turn_.grant.grant && turn::holds_lock(turn_);
  if (asked && drop_since_ == 0) drop_since_ = now();
  step(message);
}

void Client::schedule_timer() {
  Instant due = turn::next_deadline(turn_);
  if (link_ == Link::kNone) due = std::min(due, reconnect_at_);
  timer_ = due;
  if (due == turn::kNever) return;
  process_.later(due - now(), [this, due] {
    if (timer_ != due) return;
    timer_ = INT64_MAX;
    link_in(0);
  });
}

void Client::send_arena() {
  if (!std::exchange(arena_dirty_, false)) return;
  const HostMemory::Outbox outbox = host_.take_outbox();
  if (!turn_.connected) return host_.lender_gone();
  for (const uint64_t segment : outbox.returned) {
    if (run().canary() != Canary::kSegmentNotReturned) send(protocol::ArenaReturned{segment});
  }
  for (const protocol::ArenaShrunk& answer : outbox.shrunk) send(answer);
  if (outbox.asks) send(outbox.request);
}

void Client::flush() {
  send_arena();
  if (memory_dirty_ && turn_.idle.terms().memory_waiters > 0) hold_to_resident();
  if (!turn_.connected) return;
  if (std::exchange(memory_dirty_, false)) step(turn::MemoryChanged{});
  step(turn::ReportsSent{});
}

void Client::hold_to_resident() {
  if (turn::may_run(turn_)) budget_ = std::min(budget_, resident_ + static_cast<Bytes>(turn::growth_kept(turn_)));
}

void Client::connect() {
  if (turn::in_between(turn_)) {  // then there is one truth to tell
    reconnect_at_ = now() + kReconnectFirst;
    return;
  }
  step(turn::Registering{true});
  if (id_ != 0) hold_to_resident();
  connection_ = run().node().connect(process_.pid(), *this);
  if (connection_ == 0) {
    step(turn::Registering{false, false, true});
    backoff_ = std::min(std::max(backoff_ * 2, kReconnectFirst), kReconnectMost);
    reconnect_at_ = now() + backoff_;
    return;
  }
  hello_ = {};
  hello_.version_min = protocol::kVersionMin;
  hello_.version_max = process_.plan().former ? kFormerVersion : protocol::kVersionMax;
  std::fill(std::begin(hello_.gpu_uuid), std::end(hello_.gpu_uuid), static_cast<uint8_t>(gpu_ + 1));
  hello_.gpu_total_bytes = static_cast<uint64_t>(run().plan().gpu_bytes);
  hello_.pid = process_.pid();
  hello_.memory = report();
  turn::introduce(turn_, hello_);
  hello_.client_id = id_;
  hello_.lease = std::min(lease_.leased(), protocol::kLeaseMax);
  link_ = Link::kRegisters;
  run().world().tell("program {} GPU {} -> Register{}{}", process_.plan().number, gpu_, hello_.has_lock != 0 ? ", with the lock" : "",
                     hello_.wants_lock != 0 ? ", wants the lock" : "");
  run().node().send_packet(connection_, protocol::encode(hello_, protocol::kVersionMin));
  run().moment(process_, Moment::kRegisters);
}

void Client::registered(const protocol::Registered& answer) {
  grown_alone_ = 0;
  const bool first = id_ == 0;
  if (!first) process_.answers_anew();
  id_ = answer.client_id;
  version_ = answer.version;
  ceiling_ = static_cast<Bytes>(answer.memory_ceiling);
  told_lease_ = std::max(answer.lease, hello_.lease);
  lease_.grow(told_lease_ - hello_.lease);
  link_ = Link::kUp;
  backoff_ = 0;
  if (first) budget_ = 0;
  step(turn::Connected{answer.epoch, hello_.wants_lock != 0, answer.version >= 3});
  const uint64_t leased = std::min(lease_.leased(), protocol::kLeaseMax);
  if (leased > told_lease_) send(protocol::HeadroomTaken{leased - told_lease_});
  step(turn::Introduced{});
  for (const protocol::ArenaHeld& segment : host_.held()) send(segment);
}

void Client::arrived(ConnectionId connection, const Packet& packet) {
  if (connection != connection_) return;
  inbox_.push_back(packet);
  wake_link();
}

void Client::ended(ConnectionId connection) {
  if (connection != connection_) return;
  hung_up_ = true;
  wake_link();
}

void Client::cut() {
  if (connection_ != 0) run().node().cut(connection_);
}

void Client::receive() {
  while (!inbox_.empty()) {
    const Packet packet = inbox_.front();
    inbox_.pop_front();
    if (!handle(packet)) return;
  }
  if (std::exchange(hung_up_, false)) disconnected();
}

void Client::disconnected() {
  run().world().tell("program {} GPU {}: the scheduler is gone", process_.plan().number, gpu_);
  run().node().hang_up(connection_);
  connection_ = 0;
  drop_since_ = 0;
  inbox_.clear();
  host_.lender_gone();
  if (std::exchange(link_, Link::kNone) == Link::kRegisters) {
    step(turn::Registering{false, true});
  } else {
    step(turn::Disconnected{});
    backoff_ = kReconnectFirst;
  }
  reconnect_at_ = now() + std::max(backoff_, kReconnectFirst);
}

// As link/link_messages.cc of the library has it.
struct Client::Incoming {
  Client& client;
  bool& taken;  // false: it is not for a client, or not for this one

  void operator()(const protocol::LockOk& message) const { client.on_lock(message); }
  void operator()(const protocol::DropLock& message) const { client.on_drop(message); }
  void operator()(const protocol::KeepLock& message) const {
    if (client.run().canary() == Canary::kKeepNeverSent) return;
    client.drop_since_ = 0;
    client.step(message);
  }
  void operator()(const protocol::MemAvailable& message) const { client.step(message); }
  void operator()(const protocol::Headroom& message) const { client.step(message); }
  void operator()(const protocol::Prefetch& message) const { client.step(message); }
  void operator()(const protocol::Contention& message) const { client.on_contention(message); }
  void operator()(const protocol::Evict& message) const {
    if (turn::holds_lock(client.turn_))
      client.run().world().fail(fmt::format("program {} is to move memory out of its turn", client.process_.plan().number));
    client.push({Job::Kind::kEvict, message.eviction, static_cast<Bytes>(message.bytes)});
  }
  void operator()(const protocol::AskProgress& message) const {
    client.send(protocol::Progress{message.question, client.process_.submissions()});
  }
  void operator()(const protocol::UpdateLimit& message) const { client.ceiling_ = static_cast<Bytes>(message.memory_ceiling); }
  void operator()(const protocol::RecallHeadroom& message) const {
    const uint64_t returned = client.lease_.give_back(message.bytes);
    client.send(protocol::HeadroomReturned{message.recall, returned, client.lease_.charged()});
  }
  void operator()(const protocol::PrepareSwap& message) const {
    if (client.run().plan().host_lent) client.host_.grow_to(static_cast<Bytes>(message.bytes), false);
  }
  void operator()(const protocol::ArenaSegment& message) const { client.host_.lent(message); }
  void operator()(const protocol::ArenaRefused& message) const { client.host_.refused(message); }
  void operator()(const protocol::ArenaShrink& message) const { client.give_back_host(message); }
  void operator()(const protocol::WaitForMem&) const {}
  void operator()(const protocol::WhyWaiting&) const {}
  void operator()(const protocol::Refused&) const { cannot_take("Refused"); }
  void operator()(const protocol::ExportWanted&) const { cannot_take("ExportWanted"); }
  void operator()(const protocol::Imported&) const { cannot_take("Imported"); }
  void operator()(const protocol::ImportInherited&) const { cannot_take("ImportInherited"); }

 private:
  void cannot_take(const char* name) const {
    client.run().world().fail(std::string("a client cannot take ") + name);
    taken = false;
  }
};

bool Client::handle(const Packet& packet) {
  const auto type = protocol::decode_type(packet.span());
  if (!type) {
    run().world().fail("a message of the scheduler is not understood");
    return false;
  }
  run().world().tell("program {} GPU {} <- {}", process_.plan().number, gpu_, protocol::name_of(*type));
  if (link_ == Link::kUp && *type != MessageType::kRefused) {
    if (auto agreed = protocol::check_version(packet.span(), version_); !agreed) {
      run().world().fail(std::string("a message of another version than was agreed on: ") + agreed.error().text);
      return false;
    }
  }
  const auto fail = [this](const char* why) {
    run().world().fail(std::string("a message of the scheduler is not understood: ") + why);
    return false;
  };
  if (*type == MessageType::kRegistered) {
    const auto answer = protocol::decode<protocol::Registered>(packet.span());
    if (!answer) return fail(answer.error().text);
    registered(*answer);
    return true;
  }
  bool taken = true;
  const auto handled = protocol::dispatch(protocol::SchedulerMessages{}, *type, packet.span(), Incoming{*this, taken});
  return handled ? taken : fail(handled.error().text);
}

// What came in for a turn that has not begun has a copy that others may need: give_back_spare of the library.
void Client::give_back_host(const protocol::ArenaShrink& message) {
  if (!evicting_ && run().canary() != Canary::kArrivedCopiesStay) host_.give_back(std::exchange(copied_, 0));
  host_.shrink(message);
}

void Client::on_lock(const protocol::LockOk& message) {
  load_due_ = 0;
  const bool asked = turn_.phase != turn::Phase::kOut || turn_.wish.requested;
  step(message);
  if (!asked && load_due_ != 0) run().world().fail(fmt::format("program {} gets a lock that it has not asked for", process_.plan().number));
  const uint64_t load = std::exchange(load_due_, 0);
  if (load != 0 && (!turn_.context || !load_at_once(load))) push({Job::Kind::kLoad, load, 0});
}

void Client::on_contention(const protocol::Contention& message) {
  room_due_ = false;
  step(message);
  if (!std::exchange(room_due_, false)) return;
  hold_to_resident();
  step(turn::MemoryChanged{});
}

std::string Client::describe() const {
  constexpr const char* kPhases[] = {"out", "loading", "running", "paused", "draining"};
  return fmt::format("    GPU {}: client {} {}{}{}{}{}{} allocated {} resident {} budget {} MiB, host {} of {} MiB, {} jobs{}{}\n", gpu_,
                     id_, kPhases[static_cast<int>(turn_.phase)], turn_.connected ? "" : ", no scheduler",
                     turn_.wish.wanted ? ", wanted" : "", turn_.wish.requested ? ", requested" : "", wish_known_ ? ", known" : "",
                     turn_.gang_runs ? ", gang runs" : "", allocated_ / kMiB, resident_ / kMiB, budget_ / kMiB, host_.used() / kMiB,
                     host_.lent_bytes() / kMiB, jobs_.size(), swap_engine_busy_ ? ", swap engine at work" : "",
                     running_ ? ", memory in" : "");
}

}  // namespace nvshare::simulation
