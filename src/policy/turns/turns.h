// The order in which clients wait, which of them gets the lock, how long turns last and how they end: a block for each file.
#pragma once

#include <deque>

#include "policy/memory/room.h"

namespace nvshare::policy {

enum class Verdict;  // limits/limits.h

// turns.cc: how long a turn lasts, and how it ends
struct TurnTerms {
  Duration length = 0;         // how long a turn lasts
  Duration quantum = 0;        // how long it must have lasted before a waking client may end it
  bool wakes = false;          // such a client comes
  bool load_is_stuck = false;  // what holds the lock on this GPU does not fit together
};
struct Switch {
  std::set<ClientId> leavers;
  Instant at = 0;
  Bytes out = 0, in = 0;           // that move
  Duration cost = 0;               // expected, of moving what this switch moves
  Duration quantum = 0;            // what a leaver should have worked for that
  std::set<ClientId> interrupted;  // of the leavers: whose time is not over, but a waking client comes
  bool doubtful = false;           // some leaver has not drained lately: nobody is to be held back for this switch
};
Duration swap_time(const Gpu& gpu, Bytes out, Bytes in);
Duration turn_limit(const Config& config, const Gpu& gpu);  // the longest that a turn can last while somebody waits
Duration switch_time(const Config& config, Duration cost);  // of a switch that costs so much
Duration load_allowance(const Gpu& gpu, Bytes out, Bytes in);
std::optional<Instant> end_of_turn(const State& state, const Gpu& gpu, const Client& client);  // a switch as the last; none: of a gang
Instant growth_due(const Context& context, const Client& client, Duration cost);               // the same, for a neighbour's growth
struct Comers {
  std::span<const ClientId> clients;  // that are to run on this GPU
  bool wakes = false;                 // may end turns before their time
  bool at_once = false;               // and need not wait until those have worked for what the switch costs
  std::set<GangId> rivals = {};       // have to leave in any case
  Duration least_cost = 0;            // of the same switch on other GPUs
};
bool drain_is_doubtful(const State& state, const Client& client, Instant now);
void take_ends_soon(Client& client, const EndsSoon& event);
Instant drop_due(const Context& context, const Client& client, TurnTerms terms);
TurnTerms terms_of(const Config& config, Duration cost, bool wakes);
// why: for the log.
void ask_to_drop(Context& context, Gpu& gpu, Client& client, const char* why);      // with its gang
void ask_one_to_drop(Context& context, Gpu& gpu, Client& client, const char* why);  // by itself, whatever its gang does
void send_drop(Context& context, Gpu& gpu, Client& client, DrainStep step, const char* why);
// The idle end of which it speaks is no part of its share, but billed where limits hold.
void end_turn(Context& context, Gpu& gpu, Client& client, const LockReleased& event);  // recounts it
void drain_failed(Context& context, Client& client);
void note_overstay(Context& context, Client& client);  // it did not follow a request to drop
void start_running(Context& context, Gpu& gpu);        // whoever has loaded
void watch_answers(Context& context, Gpu& gpu);

// switch_plan.cc: who has to leave for a waiter
// Prefers leavers whose drain is not in doubt.
std::optional<Switch> plan_switch(const Context& context, const Gpu& gpu, const Comers& comers);

// turn_notes.cc: what the log says of turns
struct Neighbours {
  std::vector<ClientId> first;  // enough of them to be named
  size_t all = 0;
};
Neighbours holders_beside(const Gpu& gpu, const Client& client);
std::string list_of(const Neighbours& clients);
void note_switch_time(Context& context, Gpu& gpu, const Switch& plan);
void note_grant(Context& context, const Gpu& gpu, Client& client);

// queue.cc: those that wait
QueueKeys keys_of(const Client& client);
void set_put_off(Client& client, bool put_off);  // with its gang
Bytes room_asked(const Client& client);
bool is_put_off(const Client& client);                                        // behind others, and for memory
std::optional<Instant> wait_note_due(const Client& client);                   // nullopt: the log has its reason, or asks for none
void set_reason(Client& client, WaitReason reason, bool waited_for_memory);   // why it waits
const PlaceTerms& refresh_queue(const Context& context, Gpu& gpu);            // the order, where there are no gangs
std::vector<Client*> that_may_fit(Gpu& gpu, const Place& after, Bytes room);  // or of which more is to be said than that they wait

// places.cc: the waiting order
PlaceTerms place_terms_on(const Context& context, const Gpu& gpu);
Place place_of(const Context& context, const PlaceTerms& terms, const Client& client);
QueueKeys keys_of(const Gang& gang);  // of its clients that wait together
// One client, or a gang's on all GPUs: who gets the lock together.
struct Waiters {
  Place place;
  Gang* gang = nullptr;
  bool joins = false;  // the gang runs already
  bool wakes = false;
  bool ends = false;
  Client* client = nullptr;  // not of a gang
};
struct Head;
using Heads = std::map<GpuId, std::optional<Head>>;
// Those that wait on some GPUs, one after the other in their order. Of gangs that are put off only those for which it is news whether
// others come first where they wait.
class InOrder {
 public:
  InOrder(Context& context, const Gpus& gpus);
  const Waiters* next(const Heads& heads);  // null: that was all
  void add_brought_back();                  // gangs that are not put off any more: those that come behind the last one

 private:
  void find_waiting(const Gpu& gpu);
  const PlaceTerms& terms_on(const Gpu& gpu);
  Waiters waiters_of(Gang& gang, bool joins);
  Gang* next_put_off(const Heads& heads);

  Context& context_;
  const Gpus& gpus_;
  struct OfGpu {
    std::optional<PlaceTerms> terms;
    bool found = false, has_head = false;
    Gang* put_off = nullptr;  // the next, as it was found while the GPU had a head, or none
  };
  std::vector<OfGpu> of_gpus_;
  std::deque<Waiters> all_;
  std::vector<const Waiters*> order_;  // a heap
  std::optional<Place> last_;
};

// admission.cc: who gets the lock
void request_lock(Context& context, Gpu& gpu, Client& client);
void grant(Context& context, Gpu& gpu, Client& client);
void admit(Context& context, const Gpus& gpus);
// The first of the waiting on a GPU that do not fit now, but will by somebody's leaving: one client, or those of a gang.
struct Head {
  Head(std::span<const ClientId> first, Switch&& switches) : clients(first), plan(std::move(switches)) {}

  std::span<const ClientId> clients;
  Switch plan;
  mutable std::optional<RoomCount> in_turn;  // with these, and without those that leave for them
  mutable uint64_t as_of = 0;                // Gpu::recounted
};
inline bool has_head(const Heads& heads, const Gpu& gpu) {
  const auto head = heads.find(gpu.id);
  return head != heads.end() && head->second;
}
bool fits_beside(const Context& context, const Gpu& gpu, const Head& head, std::span<const ClientId> comers);
bool fits_when_departed_freed(const Context& context, const Gpu& gpu, std::span<const ClientId> clients);
// Lock holders whose needs pass their ceilings: the contexts of clients that came later take what they need. Right as long as no client
// changes.
class Pressed {
 public:
  Pressed(const Config& config, Gpu& gpu);
  bool empty() const { return empty_; }
  // Its context, and others that came after an older lock holder, take what that one needs: the older one ends first.
  bool crowded_by(const Client& comer) const;

 private:
  struct Part {
    uint64_t joined;
    Bytes bytes;
  };
  Bytes taken_after(uint64_t joined) const;  // for good, by clients that joined later

  bool empty_ = true;
  std::vector<Part> later_;  // by joining: what it takes for good, and all after it
  std::vector<Part> lacks_;  // by joining: the most that one of them, or of those before it, lacks and would have without those after it
};
// A GPU as it is while no client changes: so that each of many that wait costs little.
struct Look {
  Look(const Context& context, Gpu& gpu);

  uint64_t as_of;  // Gpu::recounted
  RoomCount now;   // without those that come; those that drop are still there
  Pressed pressed;
};
using Looks = std::map<GpuId, std::optional<Look>>;
const Look& look_at(std::optional<Look>& look, const Context& context, Gpu& gpu);  // looks anew if clients have changed
void ask_leavers_to_drop(Context& context, Gpu& gpu, const Switch& plan);
bool cannot_have_it_soon(WaitReason reason);  // not by waiting alone
// They would not fit if all lock holders who answer left.
WaitReason why_not_even_alone(const Context& context, const Gpu& gpu, std::span<const ClientId> clients);
// Limits keep all of its clients waiting that wait, and they know of that verdict.
bool knows_verdict(const Gpu& gpu, const Account& account, Verdict verdict);

}  // namespace nvshare::policy
