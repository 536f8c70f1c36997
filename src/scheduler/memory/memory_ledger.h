// The tenants' memory ledger: for each tenant on each GPU the limit in force, and how much of it each of its clients may charge without
// asking (its *lease*). What is promised: the leases of a tenant never pass its limit together, so that its processes cannot either, but
// for what they had when the limit was lowered, and what nobody could refuse (HeadroomTaken). protocol/messages.h says how leases travel.
//
// The limit in force is the lowest of what the node says and what each of the tenant's clients has in its own environment. A tenant may
// have parts, the containers of a pod: what a client's environment says then holds for its part alone, and for the tenant the parts' limits
// count in sum, as long as each has one.
//
// An ask that does not fit in what is free waits until the tenant's other clients have given back what they do not use. A client that
// does not answer in time (stopped, for instance) counts with its whole lease, and is not waited for again until it answers.
// Pure bookkeeping, time is an argument; not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "policy/policy.h"

namespace nvshare::scheduler {

class MemoryLedger {
 public:
  using ClientId = policy::ClientId;
  using TenantId = policy::TenantId;
  using GpuId = policy::GpuId;
  using Instant = policy::Instant;

  static constexpr int64_t kUnlimited = int64_t{1} << 50;             // a lease that is no bound
  static constexpr policy::Duration kAnswerPatience = 2'000'000'000;  // for what a client does not use
  static constexpr policy::Duration kTellInterval = 50'000'000;       // between two news of the others' use
  static constexpr int64_t kHeadroomUnit = int64_t{2} << 20;          // generosity is rounded down to it

  // ---- decisions ----
  // The client's lease grows by `bytes`. request 0: it did not ask.
  struct Grant {
    ClientId client;
    uint64_t request;
    bool granted;
    int64_t bytes;
    int64_t asked = 0;  // bytes; of a refusal
  };
  struct Recall {
    ClientId client;
    uint64_t recall;
    int64_t bytes;
  };
  // The limit, or what the others use, is no longer what the client was told.
  struct Tell {
    ClientId client;
  };
  using Decision = std::variant<Grant, Recall, Tell>;
  using Decisions = std::vector<Decision>;

  struct Member {
    ClientId client = 0;
    TenantId tenant = 0;
    GpuId gpu = 0;
    int64_t own_limit = 0;   // of its part of the tenant; 0 = none
    int64_t node_limit = 0;  // of the tenant; 0 = none
    int64_t charged = 0;
    int64_t lease = 0;  // that it holds already
    // Known from an earlier scheduler and not here to be asked: counts with its lease until it joins or leaves.
    bool absent = false;
    uint64_t part = 0;  // of the tenant
  };

  // It gets a lease of its own at once if there is headroom: ask lease_of().
  Decisions join(const Member& member, Instant now);
  Decisions leave(ClientId client, Instant now);
  // 0 = none.
  Decisions set_limit(TenantId tenant, GpuId gpu, int64_t limit, Instant now);
  Decisions ask(ClientId client, uint64_t request, int64_t bytes, int64_t returned, Instant now);
  Decisions returned(ClientId client, uint64_t recall, int64_t bytes, int64_t charged, Instant now);
  Decisions taken(ClientId client, int64_t bytes, Instant now);
  Decisions report(ClientId client, int64_t charged, Instant now);
  // While frozen nothing is granted where a limit holds: clients that are not back yet may hold leases of an earlier scheduler.
  Decisions freeze(bool frozen, Instant now);

  std::optional<Instant> next_deadline() const;
  Decisions tick(Instant now);

  // ---- views ----
  struct View {
    TenantId tenant = 0;
    GpuId gpu = 0;
    int64_t limit = 0;  // in force; 0 = none
    int64_t charged = 0;
    int64_t leased = 0;   // without a limit it says nothing
    uint64_t asking = 0;  // clients that wait for headroom
    uint64_t silent = 0;  // that did not answer in time
    uint64_t asks = 0;    // so far
    bool over() const { return limit > 0 && charged > limit; }
  };
  std::vector<View> view() const;
  // Behind what is in `views`: those whose first client (the one with the lowest id) is absent. Those of all others come with that client.
  void add_views_of_absent(std::vector<View>& views) const;
  std::optional<View> view_of(TenantId tenant, GpuId gpu) const;  // nullopt: it has no client there
  bool knows(ClientId client) const { return places_.contains(client); }
  // Of a client; all 0: it is not known.
  struct ClientView {
    int64_t limit = 0;  // 0 = none
    int64_t charged = 0;
    int64_t lease = 0;
  };
  ClientView view_of(ClientId client) const;
  // Of several, looked up together: each look-up waits for memory, and does not wait for the others'. `views`: at least as many.
  // `accounts` gets, behind what is there, those whose first client is among them: looking for each once more takes as long.
  void views_of(std::span<const ClientId> clients, std::span<ClientView> views, std::vector<View>& accounts) const;
  int64_t limit_of(ClientId client) const { return view_of(client).limit; }
  int64_t lease_of(ClientId client) const;
  // So that limit_of() less this less its own is what it could still have.
  int64_t charged_by_others(ClientId client) const;

  std::vector<GpuId> gpus_of(TenantId tenant) const;

 private:
  struct Account;
  struct Place;
  static View view_of(const std::pair<TenantId, GpuId>& key, const Account& account);
  static ClientView view_of(const Place& place);
  struct Ask {
    ClientId client = 0;
    uint64_t request = 0;
    int64_t bytes = 0;
    uint64_t round = 0;  // in which the others are asked for its sake; 0: not yet
  };
  struct Lessee {
    uint64_t part = 0;
    int64_t own_limit = 0;
    int64_t charged = 0;
    int64_t lease = 0;
    uint64_t recall = 0;  // that it has not answered; 0: none
    uint64_t recall_round = 0;
    Instant recalled_at = 0;
    uint64_t answered_round = 0;
    bool silent = false;
    int64_t told_limit = 0;
    int64_t told_others = 0;
  };
  struct Account {
    int64_t node_limit = 0;
    std::map<ClientId, Lessee> lessees;
    std::deque<Ask> asks;
    uint64_t round = 0;
    uint64_t asked = 0;  // so far
    Instant told_at = 0;
    bool news = false;  // of use that somebody was not told
  };
  using Key = std::pair<TenantId, GpuId>;

  using Part = std::optional<uint64_t>;  // nothing: the whole tenant
  static int64_t limit_in(const Account& account);
  static int64_t limit_of_part(const Account& account, uint64_t part);
  static int64_t charged_in(const Account& account, Part part = std::nullopt);
  static int64_t counted(const Lessee& lessee);
  static int64_t leased_in(const Account& account, Part part = std::nullopt);
  // Of one lessee, with the tenant's limit: the lower of that and its part's, 0 = none; what it may have more of; what it must think that
  // others have.
  static int64_t bound_of(const Account& account, const Lessee& lessee, int64_t limit);
  static int64_t room_for(const Account& account, const Lessee& lessee, int64_t limit);
  static int64_t others_of(const Account& account, const Lessee& lessee, int64_t limit);
  Account* account_of(ClientId client);
  const Account* account_of(ClientId client) const;
  const Lessee* lessee_of(ClientId client) const;
  static int64_t generous(const Account& account, int64_t room);
  // Everything that a change may have made due.
  void settle(Account& account, Instant now, Decisions& decisions);
  static void settle_unbounded(Account& account, int64_t limit, Decisions& decisions);
  void recall_excess(Account& account, int64_t limit, Instant now, Decisions& decisions);
  // False: the others' answers are waited for.
  bool serve(Account& account, Ask& ask, int64_t limit, Instant now, Decisions& decisions);
  // Asks all of that part but `but` for `bytes` of what they do not use; true when all have answered in that round.
  bool recall(Account& account, Part part, ClientId but, uint64_t round, int64_t bytes, Instant now, Decisions& decisions);
  static void tell(Account& account, Instant now, Decisions& decisions);

  // Whether time alone will change something about it. After each change of an account.
  void note_due(const Key& key);

  std::map<Key, Account> accounts_;
  struct Place {
    Key key;
    Account* account = nullptr;  // of that key
    Lessee* lessee = nullptr;    // in it
  };
  std::unordered_map<ClientId, Place> places_;  // to be looked up: thousands are, for each status
  std::set<ClientId> absent_;                   // Member::absent
  std::set<Key> due_;                           // accounts with something that next_deadline() has to look at
  uint64_t last_recall_ = 0;
  bool frozen_ = false;
};

}  // namespace nvshare::scheduler
