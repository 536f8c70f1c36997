#include "scheduler/memory_watch.h"

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

std::optional<int64_t> ForeignMemoryWatch::update(const GpuSample& sample, int64_t ours, int64_t untold) {
  bool steady = std::abs(sample.used_before - sample.used_after) <= kStep;
  if (!steady && ++unsteady_ <= kUnsteadyMax) return std::nullopt;
  unsteady_ = 0;
  int64_t now = std::max<int64_t>(0, std::min(sample.used_before, sample.used_after) - ours - untold);
  int64_t believed = previous_ ? std::min(now, *previous_) : 0;
  if (!previous_) believed = now;
  previous_ = now;
  if (std::abs(believed - reported_) < kStep && (believed != 0 || reported_ == 0)) return std::nullopt;
  reported_ = believed;
  return reported_;
}

std::optional<int64_t> OverheadWatch::update(int64_t used, int64_t resident, uint64_t report) {
  bool steady = report == previous_report_ && std::abs(used - previous_used_) < kStep;
  previous_used_ = used;
  previous_report_ = report;
  if (!steady) return std::nullopt;
  int64_t overhead = std::max<int64_t>(0, used - resident);
  if (reported_ && std::abs(overhead - *reported_) < kStep) return std::nullopt;
  reported_ = overhead;
  return overhead;
}

static bool differs(int64_t room, int64_t reported) {
  const int64_t step = std::max<int64_t>(64LL << 20, reported / 64);
  return std::abs(room - reported) >= step || (room == 0 && reported != 0);
}

static bool differs(const policy::HostMemory& room, const policy::HostMemory& reported) {
  if (differs(room.available, reported.available) || differs(room.free, reported.free) || differs(room.kept, reported.kept) ||
      differs(room.share, reported.share) || room.uses.size() != reported.uses.size())
    return true;
  return !std::equal(room.uses.begin(), room.uses.end(), reported.uses.begin(),
                     [](const auto& a, const auto& b) { return a.tenant == b.tenant && !differs(a.used, b.used); });
}

std::optional<policy::HostMemory> HostRoomWatch::update(policy::HostMemory room, bool moved) {
  if (reported_ && !moved && !differs(room, *reported_)) return std::nullopt;
  reported_ = std::move(room);
  return reported_;
}

int64_t available_memory(std::string_view meminfo) {
  constexpr std::string_view kKey = "MemAvailable:";
  size_t at = meminfo.find(kKey);
  if (at == std::string_view::npos) return 0;
  std::string number(meminfo.substr(at + kKey.size(), 32));
  return std::strtoll(number.c_str(), nullptr, 10) * 1024;
}

}  // namespace nvshare::scheduler
