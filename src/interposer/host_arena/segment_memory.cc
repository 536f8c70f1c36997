#include "interposer/host_arena/segment_memory.h"

#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "interposer/host_arena/own_memory.h"
#include "interposer/log.h"
#include "interposer/symbols/real_driver.h"

#ifndef PR_SET_VMA  // Linux 5.17
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

namespace nvshare::interposer {

using cuda::CUcontext;

namespace {

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

}  // namespace

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

char* map_lent(int fd, size_t bytes) {
  if (fd < 0 || lseek(fd, 0, SEEK_END) < static_cast<off_t>(bytes)) return nullptr;
  // Its pages are there. Once they are mapped, too, a later scheduler sees that this process has them.
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return nullptr;
  if (madvise(data, bytes, MADV_DONTFORK) != 0) {
    munmap(data, bytes);
    return nullptr;
  }
  madvise(data, bytes, MADV_DONTDUMP);
  return static_cast<char*>(data);
}

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

void unmake(char* data, size_t bytes, CUcontext pinned_in) {
  if (pinned_in != nullptr) {
    InContext inside(pinned_in);
    real_driver().cuMemHostUnregister(data);
  }
  munmap(data, bytes);
}

}  // namespace nvshare::interposer
