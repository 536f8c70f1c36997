// A process's client on one GPU: the real turn::step, with what interposer/link/link.cc, link_messages.cc, turns.cc and swap/engine.cc
// do around it: the socket's thread, the swap engine, the memory. Messages are the real ones, encoded and decoded. Not thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "host_memory.h"
#include "interposer/memory/limits/lease.h"
#include "interposer/turn/reports.h"
#include "interposer/turn/turn.h"
#include "node.h"

namespace nvshare::simulation {

class Process;
class Run;

namespace turn = interposer::turn;

class Client : public Endpoint {
 public:
  Client(Process& process, size_t place, int gpu);

  // The program makes its first context: registers, then is a client.
  void start();
  void process_ended();

  const turn::Turn& turn() const { return turn_; }
  int gpu() const { return gpu_; }
  size_t place() const { return place_; }
  Bytes allocated() const { return allocated_; }
  Bytes resident() const { return resident_; }
  void free_host() { host_.free_all(); }  // of a process that has ended
  void free_all() {
    resident_ = allocated_ = came_in_ = freed_ = copied_ = 0;
    free_host();
  }
  const HostMemory& host() const { return host_; }
  uint64_t id() const { return id_; }
  ConnectionId connection() const { return connection_; }
  bool registered() const { return turn_.connected && link_ == Link::kUp; }
  // Neither a message nor a thing to do is under way.
  bool at_rest() const;
  Bytes budget() const { return budget_; }
  // Since when it has been asked to drop, and has not answered; 0: it has not been.
  Instant drop_since() const { return drop_since_; }
  uint64_t leased() const { return lease_.leased(); }
  uint64_t charged() const { return lease_.charged(); }
  std::string describe() const;

  // ---- for the process's threads ----
  void want_lock();
  void used() {
    if (first_use_ == 0) first_use_ = now();
  }
  enum class Room : uint8_t { kGot, kNever, kGrow, kWait, kJoin, kShort };  // kShort: the driver has none
  Room allocate(Bytes bytes);
  void release(Bytes bytes);
  bool can_charge(Bytes bytes) { return lease_.charge(static_cast<uint64_t>(bytes)); }
  void refund(Bytes bytes) { lease_.refund(static_cast<uint64_t>(bytes)); }
  bool end_context();  // false: the swap engine is at work in it
  void begin_context() { step(turn::ContextChanged{true}); }
  void driver_short(Instant until) { driver_short_until_ = until; }
  bool covers(Bytes bytes) const { return resident_ + bytes <= budget_; }
  void take(const decltype(turn::Event::what)& what) { step(what); }
  bool grow_alone(Bytes bytes);
  Bytes copied() const { return copied_; }                                // on the GPU, and in host memory as well
  Instant waits_for_room_since() const { return waits_for_room_since_; }  // its load does; 0: none
  Bytes grown_alone() const { return grown_alone_; }                      // and has not told a scheduler since

  void arrived(ConnectionId connection, const Packet& packet) override;
  void ended(ConnectionId connection) override;
  void cut();

 private:
  friend class Checks;
  enum class Link : uint8_t { kNone, kRegisters, kUp };
  struct Job {
    enum class Kind : uint8_t { kDrain, kEvict, kLoad, kPrefetch } kind;
    uint64_t id;
    Bytes bytes;
  };
  struct Progress {
    uint64_t moved = 0, copied = 0, reported = 0;
    Instant started = 0;
    protocol::SwapDirection direction = protocol::SwapDirection::kIn;
    uint64_t id = 0;
  };

  Instant now() const;
  Run& run();
  turn::Effects step(const decltype(turn::Event::what)& what);
  void mover_may_go_on();
  void sabotage(decltype(turn::Event::what)& what);
  bool swallowed(const turn::Effect& effect);
  void carry_out(const turn::OpenGate&);
  void carry_out(const turn::CloseGate&);
  void carry_out(const turn::WakeGate&);
  void carry_out(const turn::WatchGate&) {}
  void carry_out(const turn::ForgetWish&) { wish_known_ = false; }
  void carry_out(const turn::KnowWish&) { wish_known_ = true; }
  void carry_out(const turn::LookForWaiters&);
  void carry_out(const turn::BeginUse&) { first_use_ = 0; }
  void carry_out(const turn::SetBudget& effect) { budget_ = static_cast<Bytes>(effect.bytes); }
  void carry_out(const turn::StartDrain& effect) { push({Job::Kind::kDrain, effect.drain, 0}); }
  void carry_out(const turn::StartLoad& effect) { load_due_ = effect.grant; }
  void carry_out(const turn::StartPrefetch& effect) { push({Job::Kind::kPrefetch, effect.prefetch, 0}); }
  void carry_out(const turn::MakeRoom&) { room_due_ = true; }
  void carry_out(const turn::WatchIdle&);
  void carry_out(const turn::MemoryReportDue&) { memory_dirty_ = true; }
  void carry_out(const turn::WakeLink&) { wake_link(); }
  void carry_out(const turn::SendMemory& effect);
  void carry_out(const turn::AskHeadroom& effect);
  void carry_out(const turn::GrowLease& effect) { lease_.grow_charged(effect.bytes, effect.charged); }
  void carry_out(const turn::TryLease& effect) { step(turn::LeaseTried{lease_.charge(effect.bytes)}); }
  void carry_out(const turn::Log&) {}
  void carry_out(const protocol::LockReleased& message);
  void carry_out(const protocol::Drained& message) {
    drop_since_ = 0;
    send(message);
  }
  template <typename Message>
  void carry_out(const Message& message) {
    send(message);
  }
  template <typename Message>
  void send(const Message& message) {
    if (turn_.connected && connection_ != 0) send_packet(protocol::TypeOf<Message>::name, protocol::encode(message, version_));
  }
  void send_packet(const char* name, const Packet& packet);

  // The socket's thread.
  void wake_link() { link_in(0); }
  void link_in(Duration least);
  void link_looks();
  void schedule_timer();
  void connect();
  void go_on_alone();
  void receive();
  struct Incoming;
  bool handle(const Packet& packet);
  void registered(const protocol::Registered& answer);
  void on_lock(const protocol::LockOk& message);
  void on_drop(const protocol::DropLock& message);
  void on_contention(const protocol::Contention& message);
  void disconnected();
  void flush();
  void send_arena();
  void give_back_host(const protocol::ArenaShrink& message);
  void hold_to_resident();
  void memory_changed();
  protocol::MemoryReport report() const;

  // The swap engine (client_moves.cc).
  void push(Job job);
  void mover_looks();
  void next_job();
  void job_done();
  void drain(uint64_t id);
  void wait_in_drain(uint64_t id, Duration lasts, bool stuck);
  void drained(uint64_t id);
  void evict(Progress progress, Bytes bytes);
  void load(Progress progress);
  void prefetch(Progress progress, Bytes budget);
  void prefetched(Progress progress, bool failed);
  void loaded(Progress progress, bool complete);
  void progress(Progress& progress, bool finished, bool failed);
  bool load_at_once(uint64_t grant);
  void unpin();
  void runs();
  void look_for_idleness();
  void synchronize_idle();
  void wait_for_idle(Instant from);
  Duration copy_time(Bytes bytes) const;

  Process& process_;
  const size_t place_;
  const int gpu_;
  Bytes allocated_ = 0, resident_ = 0;
  Bytes came_in_ = 0;  // in the load under way, and is held by it
  Bytes freed_ = 0;    // of what is held: still resident
  Bytes copied_ = 0;   // of what is resident: the host has a copy that is still true
  HostMemory host_;    // of plans with Plan::host_lent
  bool arena_dirty_ = false;
  bool evicting_ = false;
  Instant waits_for_room_since_ = 0;
  bool running_ = false;  // what is allocated gets memory at once

  turn::Turn turn_;
  bool wish_known_ = false;
  Instant first_use_ = 0;
  Bytes budget_ = 0, ceiling_ = 0;
  Bytes grown_alone_ = 0;
  interposer::Lease lease_;
  uint64_t told_lease_ = 0;
  uint64_t load_due_ = 0;
  bool room_due_ = false, memory_dirty_ = false;
  Instant drop_since_ = 0;

  Link link_ = Link::kNone;
  ConnectionId connection_ = 0;
  uint64_t id_ = 0;
  uint16_t version_ = protocol::kVersionMax;
  protocol::Register hello_{};
  std::deque<Packet> inbox_;
  bool hung_up_ = false;
  bool link_wakes_ = false;
  Instant timer_ = INT64_MAX;
  Instant reconnect_at_ = 0;
  Duration backoff_ = 0;

  std::deque<Job> jobs_;
  bool swap_engine_busy_ = false, mover_wakes_ = false;
  bool watching_ = false;
  Instant look_at_ = 0;
  uint64_t watch_ = 0;
  std::function<void()> on_change_;  // the swap engine waits for a larger budget
  int evictions_to_fail_ = 0, loads_to_fail_ = 0;
  Instant driver_short_until_ = 0;
};

}  // namespace nvshare::simulation
