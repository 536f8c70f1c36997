// The arena's background threads: they make, pin, unpin and unmap segments, and end when there is nothing to do.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/cgroup_memory.h"
#include "interposer/host_arena/host_arena.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

#ifndef PR_SET_VMA  // Linux 5.17
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

namespace nvshare::interposer {

using cuda::CUcontext;
using protocol::ArenaOwner;

namespace {

uint64_t meminfo_field(const char* text, const char* name) {
  const char* field = strstr(text, name);
  return field != nullptr ? strtoull(field + strlen(name), nullptr, 10) * 1024 : UINT64_MAX;
}

// What the program is left in its cgroup, at the least.
uint64_t cgroup_margin(const CgroupRoom& room) { return std::max<uint64_t>(room.limit / 16, uint64_t{64} << 20); }

// Makes `context` current for one driver call, in relaxed capture mode: a program that captures meanwhile is not disturbed (ADR 3).
class InContext {
 public:
  explicit InContext(CUcontext context) : entered_(context != nullptr && real_driver().cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
    cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
    if (entered_ && real_driver().cuThreadExchangeStreamCaptureMode != nullptr) real_driver().cuThreadExchangeStreamCaptureMode(&mode);
  }
  ~InContext() {
    CUcontext popped = nullptr;
    if (entered_) real_driver().cuCtxPopCurrent_v2(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  const bool entered_;
};

bool pin(char* data, size_t bytes, CUcontext context) {
  InContext inside(context);
  if (!inside) return false;
  cuda::CUresult result = real_driver().cuMemHostRegister_v2(data, bytes, cuda::CU_MEMHOSTREGISTER_PORTABLE);
  // Unpinned memory works too, only slower: nothing is lost.
  if (result != cuda::CUDA_SUCCESS) {
    log(LogLevel::kWarning, "the swap arena could not be page-locked (CUDA error %d): swapping will be slower", static_cast<int>(result));
  }
  return result == cuda::CUDA_SUCCESS;
}

// This process's own memory, there in full. Null: there is none.
char* make_own(size_t bytes) {
  if (host_memory_available() < bytes) return nullptr;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, bytes, MADV_HUGEPAGE);
  if (madvise(data, bytes, MADV_DONTFORK) != 0) {
    munmap(data, bytes);
    return nullptr;
  }
  madvise(data, bytes, MADV_DONTDUMP);                                    // gigabytes that are no help in a core file
  prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, data, bytes, "nvshare-arena");  // for who reads /proc/PID/smaps
  for (size_t offset = 0; offset < bytes; offset += 4096) static_cast<volatile char*>(data)[offset] = 0;
  return static_cast<char*>(data);
}

// Memory that the scheduler made. Null: it is not what was said.
char* map_lent(int fd, size_t bytes) {
  if (fd < 0 || lseek(fd, 0, SEEK_END) < static_cast<off_t>(bytes)) return nullptr;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return nullptr;
  if (madvise(data, bytes, MADV_DONTFORK) != 0) {
    munmap(data, bytes);
    return nullptr;
  }
  madvise(data, bytes, MADV_DONTDUMP);
  return static_cast<char*>(data);
}

}  // namespace

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

// Whose memory `more` bytes are to be. The program may want its cgroup's room itself: at least half of what is left stays its own.
ArenaOwner HostArena::owner_for(size_t more) {
  bool tight;
  {
    Lock lock(mutex_);
    tight = tight_;
  }
  switch (mode_) {
    case Mode::kProcess:
      return ArenaOwner::kProcess;
    case Mode::kScheduler:
      return ArenaOwner::kScheduler;
    case Mode::kAuto:
      break;
  }
  if (tight) return ArenaOwner::kScheduler;
  CgroupRoom room = own_cgroup_memory_room();
  if (!room.limited()) return ArenaOwner::kProcess;
  if (more > room.available / 2) return ArenaOwner::kScheduler;
  watch_cgroup_.store(true, std::memory_order_relaxed);
  return ArenaOwner::kProcess;
}

bool HostArena::cgroup_is_full() {
  const CgroupRoom room = own_cgroup_memory_room();
  return room.limited() && room.available < cgroup_margin(room);
}

void HostArena::look_at_cgroup() {
  CgroupRoom room = own_cgroup_memory_room();
  if (!room.limited() || room.available >= cgroup_margin(room)) return;
  Lock lock(mutex_);
  size_t marked = mark_leaving(SIZE_MAX, true);
  if (!tight_ || marked > 0) {
    log(LogLevel::kInfo, "this program's cgroup has %llu MiB left of its memory limit: %zu MiB of unused swap arena are given back",
        static_cast<unsigned long long>(room.available >> 20), marked >> 20);
  }
  tight_ = true;
  notify();
}

void HostArena::start_workers(bool urgent) {
  size_t work = loans_.size();
  for (const Segment& segment : segments_) {
    if (segment.data == nullptr || segment.busy) continue;
    const bool to_pin = segment.pinned_in == nullptr && !segment.unpinnable && context_ != nullptr;
    if (segment.leaving || to_pin) ++work;
  }
  if (context_ == nullptr) work -= loans_.size();
  // An arena that only prepares takes one processor for it: the program runs.
  uint32_t most = 1;
  if (urgent) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    most = processors <= 2 ? 1 : (processors >= 16 ? 8 : static_cast<uint32_t>(processors) / 2);
  }
  while (workers_ < most && workers_ < work) {
    pthread_t thread;
    if (!start_thread(&thread, worker_body, this, "nvshare-pin")) return;
    pthread_detach(thread);
    ++workers_;
  }
}

void* HostArena::worker_body(void* self) {
  static_cast<HostArena*>(self)->work();
  return nullptr;
}

void HostArena::work() {
  Lock lock(mutex_);
  while (!ending_ && (unmap_one() || (context_ != nullptr && (build_one() || pin_one())))) {
  }
  --workers_;
  settle_shrink();
  notify();
}

bool HostArena::unmap_one() {
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].data == nullptr || !segments_[i].leaving || segments_[i].busy) continue;
    segments_[i].busy = true;
    const Segment segment = segments_[i];
    ++in_driver_;
    mutex_.unlock();
    if (segment.pinned_in != nullptr) {
      InContext inside(segment.pinned_in);
      real_driver().cuMemHostUnregister(segment.data);
    }
    munmap(segment.data, segment.bytes);
    mutex_.lock();
    --in_driver_;
    segments_[i] = Segment{};
    ready_ -= segment.bytes;
    returned_.push_back(segment.id);
    settle_shrink();
    notify();
    device_.turns().memory_changed();
    return true;
  }
  return false;
}

bool HostArena::build_one() {
  if (loans_.empty()) return false;
  Loan loan = std::move(loans_.front());
  loans_.erase(loans_.begin());
  const CUcontext context = context_;
  const uint64_t lender = lenders_gone_;
  building_ += loan.bytes;
  ++in_driver_;
  mutex_.unlock();
  const bool own = loan.owner == ArenaOwner::kProcess;
  char* data = own ? make_own(loan.bytes) : map_lent(loan.memory.get(), loan.bytes);
  loan.memory.reset();  // the mapping holds it
  const bool pinned = data != nullptr && pin(data, loan.bytes, context);
  mutex_.lock();
  const bool stale = lender != lenders_gone_;  // who lent it is gone, and nobody has counted it since
  if (!stale) building_ -= loan.bytes;
  --in_driver_;
  if (data != nullptr) {
    Segment segment;
    segment.leaving = stale;
    segment.data = data;
    segment.bytes = loan.bytes;
    segment.id = loan.id;
    segment.owner = loan.owner;
    segment.pinned_in = pinned ? context : nullptr;
    segment.unpinnable = !pinned;
    auto vacant = std::find_if(segments_.begin(), segments_.end(), [](const Segment& s) { return s.data == nullptr; });
    if (vacant != segments_.end()) {
      *vacant = segment;
    } else {
      segments_.push_back(segment);
    }
    ready_ += loan.bytes;
  } else if (!stale) {
    lent_ -= loan.bytes;
    returned_.push_back(loan.id);
    if (own && mode_ == Mode::kAuto && !tight_) {
      tight_ = true;  // then let it be the scheduler's
      ask(asked_, urgent_ || waiters_ > 0);
    } else {
      log(LogLevel::kWarning, "host memory is short: the swap arena cannot grow by %zu MiB", loan.bytes >> 20);
      asked_ = std::min(asked_, lent_);
      refused_ = true;
    }
  }
  notify();
  device_.turns().memory_changed();
  return true;
}

// What lost its registration with the context that it was made in.
bool HostArena::pin_one() {
  for (size_t i = 0; i < segments_.size(); ++i) {
    Segment& candidate = segments_[i];
    if (candidate.data == nullptr || candidate.pinned_in != nullptr || candidate.unpinnable || candidate.busy || candidate.leaving)
      continue;
    candidate.busy = true;
    char* data = candidate.data;
    const size_t bytes = candidate.bytes;
    const CUcontext context = context_;
    ++in_driver_;
    mutex_.unlock();
    const bool pinned = pin(data, bytes, context);
    mutex_.lock();
    --in_driver_;
    segments_[i].busy = false;
    segments_[i].pinned_in = pinned ? context : nullptr;
    segments_[i].unpinnable = !pinned;
    changed_.notify_all();
    return true;
  }
  return false;
}

}  // namespace nvshare::interposer
