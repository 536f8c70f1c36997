// The registered clients, each with what the engine knows of it, found by id and by process. Pure bookkeeping; not thread-safe.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/claims.h"
#include "scheduler/gpus/memory_watch.h"
#include "scheduler/hashed_map.h"

namespace nvshare::scheduler {

using ConnectionId = uint64_t;

struct RegisteredClient {
  ConnectionId connection = 0;
  policy::ClientId id = 0;
  uint64_t joined_as = 0;  // the how-manieth client that joined: Clients::joined() then
  policy::GpuId gpu = 0;
  policy::TenantId tenant = 0;
  pid_t pid = 0;  // 0: not known
  uid_t uid = 0;
  uint64_t start_time = 0;
  std::string program;
  std::string lines_of;  // whose lines in the log its joining and leaving are
  protocol::Backend backend = protocol::Backend::kVmm;
  uint16_t version = 0;             // of the protocol
  std::string release;              // of the library; empty: not told
  std::string keeps_memory;         // as it says: why none of its memory leaves the GPU; empty: it does
  int64_t ceiling = 0;              // as the policy last said
  protocol::MemoryReport memory{};  // as it says
  ClaimBound claims;
  uint64_t prefetch = 0;                  // under way, without the lock; 0: none
  int64_t unwritten = 0;                  // of what is not on the GPU: was never there, so it needs no host memory
  policy::Memory believed{};              // of it
  policy::Instant unlisted_since = 0;     // by NVML, which would list it; 0: it is listed
  std::optional<int64_t> overhead_taken;  // taken instead of the policy's own figure until NVML has told
  struct Reports {                        // of its memory, so far
    uint64_t all = 0;
    uint64_t moves = 0;  // of them, those that had other figures of the GPU's
  };
  Reports reports;
  // What it was asked to move out last, and has told of that.
  struct Leaving {
    uint64_t eviction = 0;
    int64_t asked = 0;
    int64_t told = 0;

    int64_t left() const { return std::max<int64_t>(asked - told, 0); }
  };
  Leaving leaving;
  int64_t elsewhere = 0;  // swapped, and in no segment: managed memory, which lies where the driver likes
  int64_t prepares = 0;   // host memory that it was told to have ready
  bool seen_by_nvml = false;
  // The trust group to whose MPS daemon its process is attached (MpsGroups::Attached), 0: to none; and its name, where it has one.
  struct Mps {
    uint64_t group = 0;
    std::string name;
  };
  Mps mps;
  struct Shares {  // as the policy was told last (policy::ClientShares)
    uint64_t group = 0;
    bool measured = false;
  };
  Shares shares;
  OverheadWatch overhead;

  // What it says that it has.
  void report(const protocol::MemoryReport& now) {
    note_unwritten(now);
    reports.moves += now.resident != memory.resident;
    memory = now;
    ++reports.all;
  }
  // Bytes that it may have on its GPU.
  int64_t most_on_gpu() const { return std::max(believed.resident, claims.budget()); }

 private:
  // What a client allocates without the lock is an address until its next turn: it grew, and nothing left the GPU. What it frees is taken
  // to be of that, so that its host memory is never taken for less than it is.
  void note_unwritten(const protocol::MemoryReport& now) {
    if (reports.all == 0) return;  // how it came to what it had is not known
    const int64_t allocated_more = bounded(now.allocated) - bounded(memory.allocated);
    const int64_t swapped = bounded(now.allocated) - bounded(now.resident);
    const int64_t swapped_more = swapped - (bounded(memory.allocated) - bounded(memory.resident));
    unwritten += allocated_more < 0 ? allocated_more : std::clamp<int64_t>(swapped_more, 0, allocated_more);
    unwritten = std::clamp<int64_t>(unwritten, 0, swapped);
  }
};

class Clients {
 public:
  using Map = HashedMap<policy::ClientId, RegisteredClient>::Map;

  // A process has one for each GPU.
  RegisteredClient& add(RegisteredClient client) {
    const policy::ClientId id = client.id;
    if (client.pid != 0) of_processes_[{client.pid, client.gpu}] = id;
    client.joined_as = ++joined_;
    by_joining_.emplace_hint(by_joining_.end(), client.joined_as, id);
    return *all_.try_emplace(id).first = std::move(client);
  }
  void erase(policy::ClientId id) {
    const RegisteredClient* client = find(id);
    if (client == nullptr) return;
    elsewhere_ -= client->elsewhere;
    if (client->pid != 0) of_processes_.erase({client->pid, client->gpu});
    by_joining_.erase(client->joined_as);
    all_.erase(id);
    ++left_;
  }
  uint64_t left() const { return left_; }      // so far
  uint64_t joined() const { return joined_; }  // the same
  // Null: nobody is there that joined after the client of that number and up to the one of the last. Else the first of them.
  const RegisteredClient* next_joined(uint64_t after, uint64_t last) const {
    const auto at = by_joining_.upper_bound(after);
    return at == by_joining_.end() || at->first > last ? nullptr : find(at->second);
  }

  // Null: there is none.
  RegisteredClient* find(policy::ClientId id) { return all_.find(id); }
  const RegisteredClient* find(policy::ClientId id) const { return all_.find(id); }
  const RegisteredClient& at(policy::ClientId id) const { return all_.at(id); }
  const RegisteredClient* of_process(pid_t pid, policy::GpuId gpu) const {
    const auto at = of_processes_.find({pid, gpu});
    return at == of_processes_.end() ? nullptr : find(at->second);
  }
  Map& all() { return all_.in_order(); }  // to change clients, not which there are
  const Map& all() const { return all_.in_order(); }
  // Swapped memory that lies in no segment, of all clients.
  int64_t elsewhere() const { return elsewhere_; }
  void set_elsewhere(RegisteredClient& client, int64_t bytes) { elsewhere_ += bytes - std::exchange(client.elsewhere, bytes); }

 private:
  HashedMap<policy::ClientId, RegisteredClient> all_;
  std::map<std::pair<pid_t, policy::GpuId>, policy::ClientId> of_processes_;
  std::map<uint64_t, policy::ClientId> by_joining_;  // RegisteredClient::joined_as
  int64_t elsewhere_ = 0;
  uint64_t left_ = 0, joined_ = 0;
};

}  // namespace nvshare::scheduler
