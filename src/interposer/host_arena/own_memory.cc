#include "interposer/host_arena/own_memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "base/cgroup_memory.h"
#include "interposer/variable.h"

namespace nvshare::interposer {

using protocol::ArenaOwner;

namespace {

uint64_t meminfo_field(const char* text, const char* name) {
  const char* field = strstr(text, name);
  return field != nullptr ? strtoull(field + strlen(name), nullptr, 10) * 1024 : UINT64_MAX;
}

// What the program is left in its cgroup, at the least.
uint64_t cgroup_margin(const CgroupRoom& room) { return std::max<uint64_t>(room.limit / 16, uint64_t{64} << 20); }

}  // namespace

void OwnMemory::configure() {
  static constexpr ChoiceVariable<Mode, 3> kVariable = {
      .name = "NVSHARE_HOST_ARENA",
      .choices = {{"auto", Mode::kAuto}, {"process", Mode::kProcess}, {"scheduler", Mode::kScheduler}},
      .unset = Mode::kAuto,
      .wrong = Mode::kAuto,
      .then = "Going on with auto",
      .meaning = "whose host memory the program is swapped to; the scheduler's setting goes before"};
  mode_ = value_of(kVariable);
}

ArenaOwner OwnMemory::owner_for(size_t more) {
  switch (mode_) {
    case Mode::kProcess:
      return ArenaOwner::kProcess;
    case Mode::kScheduler:
      return ArenaOwner::kScheduler;
    case Mode::kAuto:
      break;
  }
  if (tight()) return ArenaOwner::kScheduler;
  CgroupRoom room = own_cgroup_memory_room();
  if (!room.limited()) return ArenaOwner::kProcess;
  if (more > room.available / 2) return ArenaOwner::kScheduler;
  watch_.store(true, std::memory_order_relaxed);
  return ArenaOwner::kProcess;
}

bool OwnMemory::found_short() { return mode_ == Mode::kAuto && !tight_.exchange(true, std::memory_order_relaxed); }

std::optional<uint64_t> OwnMemory::too_little() {
  const CgroupRoom room = own_cgroup_memory_room();
  if (!room.limited() || room.available >= cgroup_margin(room)) return {};
  return room.available;
}

size_t host_memory_available() {
  char text[2048];
  uint64_t available = UINT64_MAX;
  int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    available = meminfo_field(text, "MemAvailable:");
    uint64_t total = meminfo_field(text, "MemTotal:");
    // Pinned memory cannot be reclaimed: leave the rest of the machine a margin.
    uint64_t margin = total != UINT64_MAX ? total / 32 : 0;
    if (available != UINT64_MAX) available = available > margin ? available - margin : 0;
  }
  CgroupRoom room = own_cgroup_memory_room();
  if (!room.limited()) return available;
  uint64_t margin = cgroup_margin(room);
  return std::min(available, room.available > margin ? room.available - margin : 0);
}

}  // namespace nvshare::interposer
