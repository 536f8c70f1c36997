#include "scheduler/gpus/memory_watch.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

namespace nvshare::scheduler {

const ProcessMemory* find_process(const GpuSample& sample, int32_t pid) {
  for (const ProcessMemory& process : sample.processes) {
    if (process.pid == pid) return &process;
  }
  return nullptr;
}

int64_t unexplained_memory(const GpuSample& sample) {
  int64_t rest = sample.used_after;
  for (const ProcessMemory& process : sample.processes) rest -= process.used;
  return std::max<int64_t>(rest, 0);
}

bool ForeignMemoryWatch::is_moving(int64_t used, std::optional<Told> told) {
  const std::optional<uint64_t> moves = told ? std::optional(told->moves) : std::nullopt;
  const bool same_use = std::abs(std::exchange(previous_used_, used) - used) < kStep;
  const bool same_moves = std::exchange(previous_moves_, moves) == moves;
  return told && !(same_use && same_moves);
}

// Less is shown by as much as has left untold, at most. What a context that has ended was reckoned to take, and did not, was others' all
// along: that cannot be seen now, so it counts as theirs until nothing leaves.
int64_t ForeignMemoryWatch::while_leaving(int64_t believed, const Told& told) {
  const int64_t ended = std::max<int64_t>(contexts_ - told.contexts, 0);
  const int64_t most = std::min(believed + told.leaving, reported_ + (told.leaving > 0 ? ended : 0));
  if (told.leaving == 0 || std::max(believed, most) - reported_ >= kStep) contexts_ = told.contexts;
  return std::max(believed, most);
}

std::optional<int64_t> ForeignMemoryWatch::update(const GpuSample& sample, int64_t ours, int64_t untold, std::optional<Told> told,
                                                  int64_t unlisted) {
  bool steady = std::abs(sample.used_before - sample.used_after) <= kStep;
  if (!steady && ++unsteady_ <= kUnsteadyMax) return std::nullopt;
  unsteady_ = 0;
  const int64_t used = std::min(sample.used_before, sample.used_after);
  const int64_t least = std::max<int64_t>(0, used - ours - untold), most = std::max<int64_t>(0, used - ours + unlisted - untold);
  const int64_t now = std::clamp(reported_, least, most);
  int64_t believed = previous_ ? std::min(now, *previous_) : 0;
  if (!previous_) believed = now;
  previous_ = now;
  if (told) believed = while_leaving(believed, *told);
  if (is_moving(used, told) && believed < reported_) {
    largest_ = std::max(largest_, now);
    if (++moving_ <= kMovingMax) return std::nullopt;
    believed = std::min(largest_, reported_);
  }
  moving_ = 0;
  largest_ = 0;
  if (std::abs(believed - reported_) < kStep && (believed != 0 || reported_ == 0)) return std::nullopt;
  reported_ = believed;
  return reported_;
}

std::optional<int64_t> OverheadWatch::update(int64_t used, int64_t resident, uint64_t moves) {
  bool steady = moves == previous_moves_ && std::abs(used - previous_used_) < kStep;
  previous_used_ = used;
  previous_moves_ = moves;
  if (!steady) return std::nullopt;
  int64_t overhead = std::max<int64_t>(0, used - resident);
  if (reported_ && std::abs(overhead - *reported_) < kStep) return std::nullopt;
  reported_ = overhead;
  return overhead;
}

// By so much that it is told.
static bool differs(int64_t now, int64_t told) {
  const int64_t step = std::max<int64_t>(64LL << 20, told / 64);
  return std::abs(now - told) >= step || (now == 0 && told != 0);
}

void HostRoomWatch::reckoned(policy::TenantId tenant, int64_t more) {
  if (!told_ || more == 0) return;
  told_->available -= more;
  if (told_->kept == 0) return;
  told_->free -= more;
  int64_t& used = uses_[tenant];
  used = std::max<int64_t>(used + more, 0);
  changed_.insert(tenant);
}

HostRoomWatch::Differs HostRoomWatch::compare(const policy::HostMemory& room, const HostSums& sums) {
  bool less = false, more = false;
  const auto compare_one = [&](int64_t now, int64_t told, bool is_room) {
    if (differs(now, told)) ((now < told) == is_room ? less : more) = true;
  };
  compare_one(room.available, told_->available, true);
  compare_one(room.free, told_->free, true);
  compare_one(room.kept, told_->kept, false);
  compare_one(room.share, told_->share, true);
  for (const policy::TenantId tenant : changed_) {
    const auto at = uses_.find(tenant);
    const int64_t used = sums.used_by(tenant), told = at != uses_.end() ? at->second : 0;
    compare_one(used, told, false);
    if (used != told) {
      off_.insert(tenant);
    } else {
      off_.erase(tenant);
    }
  }
  if (less) return Differs::kLess;
  return more ? Differs::kMore : Differs::kNot;
}

std::optional<policy::HostMemory> HostRoomWatch::update(const policy::HostMemory& room, const HostSums& sums,
                                                        const std::set<policy::TenantId>& changed, policy::Instant now) {
  // Where nothing is kept, who uses what does not matter.
  if (!told_ || (told_->kept > 0) != (room.kept > 0)) return tell(room, sums, now);
  if (room.kept > 0) changed_.insert(changed.begin(), changed.end());
  const Differs differs = compare(room, sums);
  const bool waits = differs == Differs::kMore && unsure_.empty() && now < told_at_ + kMoreAfter;
  due_ = waits ? std::optional(told_at_ + kMoreAfter) : std::nullopt;
  if (waits) return std::nullopt;  // and those that changed are compared again
  changed_.clear();
  if (differs == Differs::kNot && unsure_.empty()) return std::nullopt;
  return tell(room, sums, now);
}

policy::HostMemory HostRoomWatch::tell(policy::HostMemory room, const HostSums& sums, policy::Instant now) {
  room.changes = told_ && told_->kept > 0 && room.kept > 0;
  told_ = room;
  told_at_ = now;
  due_.reset();
  if (room.kept == 0) uses_.clear();
  if (room.changes) {
    off_.merge(unsure_);
    for (const policy::TenantId tenant : off_) room.uses.push_back({tenant, sums.used_by(tenant)});
  } else if (room.kept > 0) {
    sums.each_used([&](policy::TenantId tenant, int64_t used) {
      if (used > 0) room.uses.push_back({tenant, used});
    });
  }
  for (const auto& [tenant, used] : room.uses) {
    if (used > 0) {
      uses_[tenant] = used;
    } else {
      uses_.erase(tenant);
    }
  }
  changed_.clear();
  off_.clear();
  unsure_.clear();
  return room;
}

int64_t available_memory(std::string_view meminfo) {
  constexpr std::string_view kKey = "MemAvailable:";
  size_t at = meminfo.find(kKey);
  if (at == std::string_view::npos) return 0;
  std::string number(meminfo.substr(at + kKey.size(), 32));
  return std::strtoll(number.c_str(), nullptr, 10) * 1024;
}

}  // namespace nvshare::scheduler
