// Lends the host's memory for swapping to clients, under one budget (host_budget.h, which decides): has the segments of the scheduler's own
// memory, knows whose processes may still have one, and looks at the host.
//
// One thread, the engine's; every call that needs it names the time. Answers go out by HostBorrowers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/descriptors.h"
#include "base/fd.h"
#include "policy/policy.h"
#include "protocol/admin.h"
#include "protocol/messages.h"
#include "scheduler/gpus/memory_watch.h"
#include "scheduler/host/host_budget.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/living_processes.h"

namespace nvshare::scheduler {

// Makes host memory for swapping, away from the engine's thread. Neither call may call back into the lender; answers come later, by
// HostLender::made and discarded.
class SegmentMaker {
 public:
  virtual ~SegmentMaker() = default;
  virtual void make(SegmentId segment, int64_t bytes) = 0;
  // Finds out whether somebody still has it, after emptying it if `punch`.
  virtual void discard(SegmentId segment, FileDescriptor memory, bool punch) = 0;
};

// The clients, as their engine knows them. No call comes back into the lender. What is for a client that is not there goes nowhere.
class HostBorrowers {
 public:
  virtual ~HostBorrowers() = default;
  virtual bool is_there(policy::ClientId client) const = 0;
  virtual bool is_alive(pid_t pid, uint64_t start_time) const = 0;
  virtual void lend(policy::ClientId client, const protocol::ArenaSegment& segment, Descriptors descriptors) = 0;
  // `urgent`: what cannot move stays on the GPU, because of `bound`.
  virtual void refuse(policy::ClientId client, const protocol::ArenaRefused& message, bool urgent, HostBudget::Bound bound,
                      policy::Instant now) = 0;
  virtual void ask_back(policy::ClientId client, const protocol::ArenaShrink& message) = 0;
  // What more could be swapped out.
  virtual void host_room_changed(const policy::HostMemory& room, policy::Instant now) = 0;
};

class HostLender {
 public:
  // How much of a process's memory may be its own segments, and how much of segments that a scheduler made.
  using MemoryOf = std::function<std::pair<int64_t, int64_t>(pid_t)>;
  struct Options {
    std::function<HostBudget::Machine()> look_at_host;  // now
    MemoryOf memory_of;                                 // of a process, as the kernel has it; from /proc when there is none
    std::function<SegmentId()> new_segment_id;          // random ones when there is none
    SegmentMaker* segment_maker = nullptr;              // null: the scheduler lends no memory of its own
  };
  HostLender(Options options, HostBorrowers& borrowers);

  struct Borrower {
    policy::ClientId id = 0;
    policy::TenantId tenant = 0;
    pid_t pid = 0;  // 0: not seen from here
    uint64_t start_time = 0;
    policy::GpuId gpu = 0;
    int64_t gpu_total = 0;
  };
  // `returns`: it was a client of an earlier scheduler.
  void join(const Borrower& borrower, bool returns);
  void leave(const Borrower& borrower);
  // It has some of the memory that is lent, or waits for some: others may have more without it, at once.
  bool concerns(policy::ClientId client) const;
  // What clients say. update() is to follow.
  void request(policy::ClientId client, const protocol::ArenaRequest& message, HostArena wanted);
  void returned(policy::ClientId client, const protocol::ArenaReturned& message, policy::Instant now);
  void shrunk(policy::ClientId client, const protocol::ArenaShrunk& message, policy::Instant now);
  void held(policy::ClientId client, const protocol::ArenaHeld& message);
  // Bytes of its segments that are ready, and of them in use. How much more are in use now, as far as they were lent.
  int64_t report(policy::ClientId client, int64_t ready, int64_t used);
  void cannot_hand_over(policy::ClientId client, SegmentId segment, policy::Instant now);

  // A program asks for more than it has on its GPU only because what is free lies in pieces.
  static int64_t most_needed(int64_t gpu_total) { return gpu_total + gpu_total / 4 + HostBudget::kSegmentMax; }
  // Looks at the host only if much was swapped since, or when forced. `elsewhere`: swapped bytes that lie in no segment (managed memory).
  void update(const Settings& settings, int64_t elsewhere, bool force, policy::Instant now);
  // So much more of its segments is in use, as the policy was told with the movement: it is not told once more.
  void note_reckoned(policy::TenantId tenant, int64_t more) { room_.reckoned(tenant, more); }
  // So much memory that lies in no segment was swapped: what the policy reckons with may not be what there is.
  void note_moved(policy::TenantId tenant, int64_t bytes) {
    moved_since_ += bytes;
    room_.unsure_of(tenant);
  }
  // From the segment maker; update() is to follow.
  void made(SegmentId segment, FileDescriptor memory);  // none: it could not be
  void discarded(SegmentId segment, bool still_held, policy::Instant now);

  std::optional<policy::Instant> next_deadline() const;
  void deadline_reached(policy::Instant now);

  // Those of clients that have left and may still have memory.
  std::set<policy::GpuId> gpus_of_holders() const;
  void report(protocol::admin::StatusReport* report) const;
  HostBudget::ClientView view(policy::ClientId client) const { return budget_.view(client); }

 private:
  // A process that may still have memory of a client that has left.
  struct Holder {
    pid_t pid = 0;  // 0: not seen from here
    uint64_t start_time = 0;
    policy::GpuId gpu = 0;
  };

  void settle(policy::Instant now);
  void tell_room(policy::Instant now);
  void perform(const HostBudget::Decision& decision, LivingProcesses* living, policy::Instant now);
  void perform(const HostBudget::Make& make);
  void perform(const HostBudget::Lend& lend);
  void perform(const HostBudget::Refuse& refuse, policy::Instant now);
  void perform(const HostBudget::Discard& discard, LivingProcesses* living, policy::Instant now);

  const std::function<HostBudget::Machine()> look_at_host_;
  const MemoryOf memory_of_;
  SegmentMaker* const segment_maker_;
  HostBorrowers& borrowers_;
  HostBudget budget_;
  HostRoomWatch room_;
  std::map<SegmentId, FileDescriptor> segments_;  // of the scheduler's own memory that were lent or are kept, or are not gone yet
  std::map<policy::ClientId, Holder> holders_;
  int64_t used_then_ = 0;    // by swapped memory, when the host was last looked at
  int64_t moved_since_ = 0;  // bytes that note_moved() told of since
};

void report_of(const HostBudget::ClientView& view, protocol::admin::ClientHostReport* report);

// The kernel's word for HostLender::Options::memory_of.
std::pair<int64_t, int64_t> host_memory_by_proc(pid_t pid);

}  // namespace nvshare::scheduler
