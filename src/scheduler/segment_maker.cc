#include "scheduler/segment_maker.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "scheduler/log.h"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace nvshare::scheduler {
namespace {

constexpr unsigned kThreadsMax = 8;

// Every page becomes this process's to pay for. False: errno says why; what is short is not discovered by a signal.
bool populate(char* data, size_t bytes) {
  madvise(data, bytes, MADV_HUGEPAGE);
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  for (size_t offset = 0; offset < bytes; offset += 4096) static_cast<volatile char*>(data)[offset] = 0;
  return true;
}

}  // namespace

Result<FileDescriptor> make_segment(int64_t bytes) {
  FileDescriptor memory(memfd_create("nvshare-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return error_format("memfd_create: %s", std::strerror(errno));
  const auto size = static_cast<size_t>(bytes);
  if (ftruncate(memory.get(), bytes) != 0) return error_format("ftruncate to %zu bytes: %s", size, std::strerror(errno));
  if (fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return error_format("sealing a memfd: %s", std::strerror(errno));
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (data == MAP_FAILED) return error_format("mapping %zu bytes: %s", size, std::strerror(errno));
  const bool there = populate(static_cast<char*>(data), size);
  const int error = errno;
  munmap(data, size);
  if (!there) return error_format("populating %zu bytes: %s", size, std::strerror(error));
  return memory;
}

MemfdMaker::MemfdMaker(EventLoop& loop, Answers answers) : loop_(loop), answers_(std::move(answers)) {}

MemfdMaker::~MemfdMaker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MemfdMaker::make(SegmentId segment, int64_t bytes) { push({segment, bytes, {}}); }
void MemfdMaker::discard(SegmentId segment, FileDescriptor memory) { push({segment, 0, std::move(memory)}); }

void MemfdMaker::push(Job job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  const unsigned most = std::clamp(std::thread::hardware_concurrency() / 2, 1u, kThreadsMax);
  if (idle_ < jobs_.size() && threads_.size() < most) {
    // Signals are the loop's.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    threads_.emplace_back([this] { work(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  changed_.notify_one();
}

void MemfdMaker::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (jobs_.empty()) {
      ++idle_;
      changed_.wait(lock);
      --idle_;
      continue;
    }
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    if (job.bytes == 0) {
      job.memory.reset();
      loop_.post([this, segment = job.segment] { answers_.discarded(segment); });
    } else {
      Result<FileDescriptor> made = make_segment(job.bytes);
      if (!made) spdlog::warn("cannot make host memory for swapping: {}", made.error().text);
      // A posted call can be copied, a descriptor cannot.
      auto memory = std::make_shared<FileDescriptor>(made ? std::move(*made) : FileDescriptor());
      loop_.post([this, segment = job.segment, memory] { answers_.made(segment, std::move(*memory)); });
    }
    lock.lock();
  }
}

}  // namespace nvshare::scheduler
