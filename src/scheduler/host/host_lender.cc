#include "scheduler/host/host_lender.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <tuple>

#include "scheduler/host/segment_maker.h"

namespace nvshare::scheduler {
namespace {

using namespace protocol;

constexpr int64_t kMovedStep = 64LL << 20;
constexpr int64_t kCountedLate = 16LL << 20;  // of a process's pages: the kernel counts them in lots, a lot for each CPU

SegmentId random_segment_id() {
  SegmentId id = 0;
  if (getentropy(&id, sizeof id) != 0) throw std::runtime_error("the kernel gives no random numbers");
  return id;
}

HostBudget::Owner owner_wanted(HostArena wanted, ArenaOwner owner) {
  switch (wanted) {
    case HostArena::kProcess:
      return HostBudget::Owner::kProcess;
    case HostArena::kScheduler:
      return HostBudget::Owner::kScheduler;
    case HostArena::kAuto:
      break;
  }
  return owner == ArenaOwner::kScheduler ? HostBudget::Owner::kScheduler : HostBudget::Owner::kProcess;
}

}  // namespace

// Without its maps: to read them waits for a lock of the process's, which it can keep for as long as it likes (a fork of a large program, a
// mapping of a file whose server does not answer).
std::pair<int64_t, int64_t> host_memory_by_proc(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  int64_t own = 0, lent = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) own = std::strtoll(line.c_str() + 8, nullptr, 10) * 1024;
    if (line.starts_with("RssShmem:")) lent = std::strtoll(line.c_str() + 9, nullptr, 10) * 1024;
  }
  return {own, lent > 0 ? lent + kCountedLate : 0};
}

HostLender::HostLender(Options options, HostBorrowers& borrowers)
    : look_at_host_(std::move(options.look_at_host)),
      memory_of_(options.memory_of ? std::move(options.memory_of) : host_memory_by_proc),
      segment_maker_(options.segment_maker),
      borrowers_(borrowers),
      budget_(options.new_segment_id ? std::move(options.new_segment_id) : random_segment_id) {}

// ---- clients ----

void HostLender::join(const Borrower& borrower, bool returns) {
  HostBudget::Member member;
  member.tenant = borrower.tenant;
  member.most = most_needed(borrower.gpu_total);
  if (returns) std::tie(member.held_process, member.held_scheduler) = memory_of_(borrower.pid);
  const auto is_same = [&](const auto& entry) {
    const Holder& holder = entry.second;
    return holder.start_time != 0 && holder.pid == borrower.pid && holder.start_time == borrower.start_time && holder.gpu == borrower.gpu;
  };
  if (auto former = std::find_if(holders_.begin(), holders_.end(), is_same); former != holders_.end()) {
    member.former = former->first;
    holders_.erase(former);
    holders_[borrower.id] = {borrower.pid, borrower.start_time, borrower.gpu};
  }
  budget_.join(borrower.id, member);
}

bool HostLender::concerns(policy::ClientId client) const {
  const HostLedger::Account* account = budget_.ledger().find(client);
  return account != nullptr && account->has_or_wants();
}

void HostLender::leave(const Borrower& borrower) {
  budget_.leave(borrower.id);
  if (budget_.ledger().unowned().has_left_some(borrower.id)) {
    holders_[borrower.id] = {borrower.pid, borrower.start_time, borrower.gpu};
  } else {
    holders_.erase(borrower.id);
  }
}

void HostLender::request(policy::ClientId client, const ArenaRequest& message, HostArena wanted) {
  budget_.request(client, message.request, static_cast<int64_t>(message.total),
                  owner_wanted(wanted, static_cast<ArenaOwner>(message.owner)), message.urgent != 0);
}

void HostLender::returned(policy::ClientId client, const ArenaReturned& message, policy::Instant now) {
  budget_.returned(client, message.segment, now);
}

void HostLender::shrunk(policy::ClientId client, const ArenaShrunk& message, policy::Instant now) {
  budget_.shrunk(client, message.shrink, static_cast<int64_t>(message.bytes), now);
}

void HostLender::held(policy::ClientId client, const ArenaHeld& message) {
  const bool own = static_cast<ArenaOwner>(message.owner) == ArenaOwner::kProcess;
  budget_.held(client, message.segment, static_cast<int64_t>(message.bytes),
               own ? HostBudget::Owner::kProcess : HostBudget::Owner::kScheduler);
}

int64_t HostLender::report(policy::ClientId client, int64_t ready, int64_t used) {
  const auto used_by = [&] {
    const HostLedger::Account* account = budget_.ledger().find(client);
    return account != nullptr ? account->used : 0;
  };
  const int64_t before = used_by();
  budget_.report(client, ready, used);
  return used_by() - before;
}

void HostLender::cannot_hand_over(policy::ClientId client, SegmentId segment, policy::Instant now) {
  budget_.cannot_hand_over(client, segment);
  settle(now);
}

std::set<policy::GpuId> HostLender::gpus_of_holders() const {
  std::set<policy::GpuId> gpus;
  for (const auto& [id, holder] : holders_) gpus.insert(holder.gpu);
  return gpus;
}

// ---- decisions ----

void HostLender::update(const Settings& settings, int64_t elsewhere, bool force, policy::Instant now) {
  budget_.set_elsewhere(elsewhere);
  const int64_t used = elsewhere + budget_.ledger().sums().all.used;  // as view() has it, which works out much besides
  // What the policy reckons with may have moved though `used` has not: a client's first load takes nothing from host memory.
  if (!force && std::abs(used - used_then_) < kMovedStep && moved_since_ < kMovedStep) return;
  used_then_ = used;
  budget_.set_bounds({settings.host_memory_budget, settings.host_memory_kept_free});
  budget_.observe(look_at_host_());
  settle(now);
  moved_since_ = 0;
  tell_room(now);
}

void HostLender::tell_room(policy::Instant now) {
  const auto room = room_.update(budget_.view().for_policy, budget_.ledger().sums(), budget_.take_changed(), now);
  if (room) borrowers_.host_room_changed(*room, now);
}

std::optional<policy::Instant> HostLender::next_deadline() const {
  const std::optional<policy::Instant> room = room_.due(), decision = budget_.next_deadline();
  return room && decision ? std::min(room, decision) : room ? room : decision;
}

void HostLender::deadline_reached(policy::Instant now) {
  if (const auto at = budget_.next_deadline(); at && *at <= now) settle(now);
  if (const auto at = room_.due(); at && *at <= now) tell_room(now);
}

void HostLender::settle(policy::Instant now) {
  for (;;) {
    std::vector<HostBudget::Decision> decisions = budget_.settle(now);
    if (decisions.empty()) return;
    // A process that ends may leave hundreds of segments.
    LivingProcesses living([this](pid_t pid, uint64_t start_time) { return borrowers_.is_alive(pid, start_time); });
    for (const HostBudget::Decision& decision : decisions) perform(decision, &living, now);
  }
}

void HostLender::perform(const HostBudget::Decision& decision, LivingProcesses* living, policy::Instant now) {
  struct Performer {
    HostLender& lender;
    LivingProcesses* living;
    policy::Instant now;
    void operator()(const HostBudget::Make& make) const { lender.perform(make); }
    void operator()(const HostBudget::Lend& lend) const { lender.perform(lend); }
    void operator()(const HostBudget::Refuse& refuse) const { lender.perform(refuse, now); }
    void operator()(const HostBudget::Shrink& shrink) const {
      lender.borrowers_.ask_back(shrink.client, ArenaShrink{shrink.shrink, static_cast<uint64_t>(shrink.bytes)});
    }
    void operator()(const HostBudget::Discard& discard) const { lender.perform(discard, living, now); }
  };
  std::visit(Performer{*this, living, now}, decision);
}

void HostLender::perform(const HostBudget::Make& make) {
  if (segment_maker_ == nullptr) return budget_.made(make.segment, false);
  segment_maker_->make(make.segment, make.bytes);
}

void HostLender::perform(const HostBudget::Lend& lend) {
  if (!borrowers_.is_there(lend.client)) return;
  Descriptors descriptors;
  if (lend.owner == HostBudget::Owner::kScheduler) {
    auto memory = segments_.find(lend.segment);
    if (memory == segments_.end()) return budget_.cannot_hand_over(lend.client, lend.segment);
    Result<FileDescriptor> opened = open_again(memory->second);
    if (!opened) {
      spdlog::warn("cannot hand over host memory for swapping: {}", opened.error().text);
      return budget_.cannot_hand_over(lend.client, lend.segment);
    }
    descriptors.add(std::move(*opened));
  }
  borrowers_.lend(lend.client, ArenaSegment{lend.segment, static_cast<uint64_t>(lend.bytes), static_cast<uint8_t>(lend.owner), {}},
                  std::move(descriptors));
}

void HostLender::perform(const HostBudget::Refuse& refuse, policy::Instant now) {
  const HostBudget::ClientView view = budget_.view(refuse.client);
  borrowers_.refuse(refuse.client, ArenaRefused{refuse.request, static_cast<uint64_t>(refuse.missing)}, view.urgent, view.bound, now);
}

// Memory that nobody is to have is emptied at once. What a client had when its connection ended is its process's as long as that lives: it
// may come back, and its data is there.
void HostLender::perform(const HostBudget::Discard& discard, LivingProcesses* living, policy::Instant now) {
  const auto holder = holders_.find(discard.holder);
  const bool is_nobodys = discard.holder == 0 || holder == holders_.end();
  const bool is_seen = !is_nobodys && holder->second.pid != 0 && holder->second.start_time != 0;  // the process, from here
  const bool is_held = is_seen && living->has(holder->second.pid, holder->second.start_time);
  const auto at = segments_.find(discard.segment);
  if (at == segments_.end() || segment_maker_ == nullptr) {  // the process's own, or an earlier scheduler's
    return discarded(discard.segment, is_held, now);
  }
  FileDescriptor copy(fcntl(at->second.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return discarded(discard.segment, true, now);
  segment_maker_->discard(discard.segment, std::move(copy), is_nobodys || (is_seen && !is_held));
}

// ---- the segment maker's answers ----

void HostLender::made(SegmentId segment, FileDescriptor memory) {
  const bool there = static_cast<bool>(memory);
  if (there) segments_[segment] = std::move(memory);
  budget_.made(segment, there);
}

void HostLender::discarded(SegmentId segment, bool still_held, policy::Instant now) {
  if (still_held) return budget_.still_held(segment, now);
  const UnownedSegments::Leaving* leaving = budget_.ledger().unowned().leaving(segment);
  const policy::ClientId holder = leaving != nullptr ? leaving->holder : 0;  // which has left and may have it; 0: none
  segments_.erase(segment);
  budget_.discarded(segment);
  if (!budget_.ledger().unowned().has_left_some(holder)) holders_.erase(holder);
}

// ---- reports ----

void HostLender::report(admin::StatusReport* report) const {
  const HostBudget::View view = budget_.view();
  report->host_memory_available = view.room;
  report->host_memory_budget = view.budget;
  report->host_memory_reserved = view.reserved;
  report->host_memory_used = view.used;
  report->host_memory_bound = describe(view.bound);
}

void report_of(const HostBudget::ClientView& view, admin::ClientHostReport* report) {
  report->host_memory_process = view.lent_process;
  report->host_memory_scheduler = view.lent_scheduler;
  if (!view.urgent || view.missing <= 0) return;
  report->host_memory_missing = view.missing;
  report->host_memory_bound = describe(view.bound);
}

}  // namespace nvshare::scheduler
