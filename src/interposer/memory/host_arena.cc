#include "interposer/memory/host_arena.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interposer/log.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

constexpr uint32_t kUnitsMax = HostArena::kSegmentBytes / HostArena::kUnitBytes;
static_assert(kUnitsMax <= 128);

// The first run of `count` clear bits below `limit`, or -1.
int find_run(const uint64_t* bits, uint32_t limit, uint32_t count) {
  uint32_t run = 0;
  for (uint32_t i = 0; i < limit; ++i) {
    run = (bits[i / 64] >> (i % 64) & 1) != 0 ? 0 : run + 1;
    if (run == count) return static_cast<int>(i + 1 - count);
  }
  return -1;
}

// Reads a whole small file; false if there is none.
bool read_file(const char* path, char* buffer, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = read(fd, buffer, size - 1);
  close(fd);
  if (got < 0) return false;
  buffer[got] = '\0';
  return true;
}

// The number in /sys/fs/cgroup/<own cgroup>/<file>; UINT64_MAX when there is none or it says "max".
uint64_t cgroup_number(const char* cgroup, const char* file) {
  char path[640];
  char text[64];
  snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", cgroup, file);
  if (!read_file(path, text, sizeof text) || strncmp(text, "max", 3) == 0) return UINT64_MAX;
  return strtoull(text, nullptr, 10);
}

uint64_t cgroup_available() {
  char text[512];
  if (!read_file("/proc/self/cgroup", text, sizeof text)) return UINT64_MAX;
  char* line = strstr(text, "0::");
  if (line == nullptr || (line != text && line[-1] != '\n')) return UINT64_MAX;
  char* cgroup = line + 3;
  cgroup[strcspn(cgroup, "\n")] = '\0';
  uint64_t limit = cgroup_number(cgroup, "memory.max");
  uint64_t current = cgroup_number(cgroup, "memory.current");
  if (limit == UINT64_MAX || current == UINT64_MAX) return UINT64_MAX;
  return limit > current ? limit - current : 0;
}

}  // namespace

size_t host_memory_available() {
  char text[2048];
  uint64_t available = UINT64_MAX;
  uint64_t total = 0;
  if (read_file("/proc/meminfo", text, sizeof text)) {
    const char* field = strstr(text, "MemAvailable:");
    if (field != nullptr) available = strtoull(field + 13, nullptr, 10) * 1024;
    field = strstr(text, "MemTotal:");
    if (field != nullptr) total = strtoull(field + 9, nullptr, 10) * 1024;
  }
  // Pinned memory cannot be reclaimed: leave the rest of the machine a margin.
  uint64_t margin = total / 32;
  available = available > margin ? available - margin : 0;
  uint64_t in_cgroup = cgroup_available();
  return available < in_cgroup ? available : in_cgroup;
}

void HostArena::grow_to(size_t bytes, cuda::CUcontext context) {
  Lock lock(mutex_);
  bytes = (bytes + kSegmentBytes - 1) / kSegmentBytes * kSegmentBytes;
  if (bytes > target_) target_ = bytes;
  context_ = context;
  if (ready_ + under_way_ >= target_) return;
  short_ = false;
  uint32_t missing = static_cast<uint32_t>((target_ - ready_ - under_way_) / kSegmentBytes);
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  uint32_t growers_max = processors <= 2 ? 1 : (processors >= 16 ? 8 : static_cast<uint32_t>(processors) / 2);
  while (growers_ < growers_max && growers_ < missing) {
    pthread_t thread;
    if (!start_thread(&thread, grower_body, this, "nvshare-pin")) break;
    pthread_detach(thread);
    ++growers_;
  }
  if (growers_ == 0) short_ = true;  // no thread to be had: allocate() must not wait for one
}

void* HostArena::grower_body(void* self) {
  static_cast<HostArena*>(self)->grower();
  return nullptr;
}

void HostArena::grower() {
  Lock lock(mutex_);
  while (!short_ && ready_ + under_way_ < target_) {
    cuda::CUcontext context = context_;
    under_way_ += kSegmentBytes;
    lock.unlock();
    bool made = make_segment(context);
    lock.lock();
    under_way_ -= kSegmentBytes;
    if (!made) {
      short_ = true;
      target_ = ready_;
    }
    changed_.notify_all();
  }
  --growers_;
  changed_.notify_all();
}

bool HostArena::make_segment(cuda::CUcontext context) {
  if (host_memory_available() < kSegmentBytes) {
    log(LogLevel::kWarning, "host memory is short: the swap arena cannot grow by %zu MiB", kSegmentBytes >> 20);
    return false;
  }
  void* data = mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return false;
  madvise(data, kSegmentBytes, MADV_HUGEPAGE);
  madvise(data, kSegmentBytes, MADV_DONTFORK);
  for (size_t offset = 0; offset < kSegmentBytes; offset += 4096) static_cast<volatile char*>(data)[offset] = 0;
  cuda::CUresult pinned = cuda::CUDA_ERROR_INVALID_CONTEXT;
  const RealDriver& driver = real_driver();
  if (context != nullptr && driver.cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
    cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
    if (driver.cuThreadExchangeStreamCaptureMode != nullptr) driver.cuThreadExchangeStreamCaptureMode(&mode);
    pinned = driver.cuMemHostRegister_v2(data, kSegmentBytes, cuda::CU_MEMHOSTREGISTER_PORTABLE);
    cuda::CUcontext popped = nullptr;
    driver.cuCtxPopCurrent_v2(&popped);
  }
  if (pinned != cuda::CUDA_SUCCESS) {
    // Unpinned memory works too, only slower: nothing is lost.
    log(LogLevel::kWarning, "the swap arena could not be page-locked (CUDA error %d): swapping will be slower", static_cast<int>(pinned));
  }
  Lock lock(mutex_);
  Segment segment;
  segment.data = static_cast<char*>(data);
  segment.bytes = kSegmentBytes;
  segment.pinned_in = pinned == cuda::CUDA_SUCCESS ? context : nullptr;
  for (Segment& vacant : segments_) {
    if (vacant.data == nullptr) {
      vacant = segment;
      ready_ += kSegmentBytes;
      return true;
    }
  }
  segments_.push_back(segment);
  ready_ += kSegmentBytes;
  return true;
}

bool HostArena::take(Segment& segment, uint32_t index, size_t units, HostSlot* slot) {
  if (segment.data == nullptr || segment.used_units + units > kUnitsMax) return false;
  int first = find_run(segment.used, kUnitsMax, static_cast<uint32_t>(units));
  if (first < 0) return false;
  for (uint32_t i = static_cast<uint32_t>(first); i < static_cast<uint32_t>(first) + units; ++i) {
    segment.used[i / 64] |= uint64_t{1} << (i % 64);
  }
  segment.used_units += static_cast<uint32_t>(units);
  slot->data = segment.data + static_cast<size_t>(first) * kUnitBytes;
  slot->segment = index;
  slot->bytes = static_cast<uint32_t>(units * kUnitBytes);
  return true;
}

HostSlot HostArena::allocate(size_t bytes) {
  size_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  Lock lock(mutex_);
  for (;;) {
    HostSlot slot;
    for (uint32_t i = 0; i < segments_.size(); ++i) {
      if (take(segments_[i], i, units, &slot)) return slot;
    }
    if (growers_ > 0) {
      changed_.wait(mutex_);
      continue;
    }
    if (short_) return slot;
    // Fragmentation, or more swapped than was foreseen: one segment more.
    size_t wanted = ready_ + kSegmentBytes;
    cuda::CUcontext context = context_;
    lock.unlock();
    grow_to(wanted, context);
    lock.lock();
  }
}

void HostArena::free(const HostSlot& slot) {
  if (slot.data == nullptr) return;
  Lock lock(mutex_);
  Segment& segment = segments_[slot.segment];
  size_t first = static_cast<size_t>(slot.data - segment.data) / kUnitBytes;
  size_t units = slot.bytes / kUnitBytes;
  for (size_t i = first; i < first + units; ++i) segment.used[i / 64] &= ~(uint64_t{1} << (i % 64));
  segment.used_units -= static_cast<uint32_t>(units);
  changed_.notify_all();
}

size_t HostArena::ready_bytes() {
  Lock lock(mutex_);
  return ready_;
}

size_t HostArena::used_bytes() {
  Lock lock(mutex_);
  size_t units = 0;
  for (const Segment& segment : segments_) units += segment.used_units;
  return units * kUnitBytes;
}

void HostArena::context_gone(cuda::CUcontext context) {
  Lock lock(mutex_);
  if (context_ == context) {
    context_ = nullptr;
    target_ = ready_;
  }
  while (growers_ > 0) changed_.wait(mutex_);
  for (Segment& segment : segments_) {
    if (segment.data == nullptr || segment.pinned_in != context) continue;
    real_driver().cuMemHostUnregister(segment.data);
    segment.pinned_in = nullptr;
  }
}

void HostArena::shrink() {
  Lock lock(mutex_);
  for (Segment& segment : segments_) {
    if (segment.data == nullptr || segment.used_units > 0) continue;
    if (segment.pinned_in != nullptr) real_driver().cuMemHostUnregister(segment.data);
    munmap(segment.data, segment.bytes);
    segment = Segment{};
    ready_ -= kSegmentBytes;
  }
  if (target_ > ready_) target_ = ready_;
}

void HostArena::reset_after_fork() {
  mutex_.reset_after_fork();
  segments_.clear();  // MADV_DONTFORK: the child has no such mappings
  ready_ = target_ = under_way_ = 0;
  growers_ = 0;
}

}  // namespace nvshare::interposer
