#include "scheduler/host/segment_maker.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

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

Result<FileDescriptor> open_again(const FileDescriptor& memory) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", memory.get());
  FileDescriptor again(open(path, O_RDWR | O_CLOEXEC));
  if (!again) return error_format("open %s: %s", path, std::strerror(errno));
  return again;
}

bool let_go(const FileDescriptor& memory, bool punch) {
  struct stat about {};
  if (fstat(memory.get(), &about) != 0) return false;
  const auto punch_all = [&] { fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, about.st_size); };
  if (punch) punch_all();
  if (fcntl(memory.get(), F_SETLEASE, F_WRLCK) == 0) {
    fcntl(memory.get(), F_SETLEASE, F_UNLCK);
    if (!punch) punch_all();  // here rather than by the last close, which is the loop's
    return false;
  }
  if (errno == EAGAIN) return true;
  // No leases here: what is in it after it was emptied tells.
  return !punch || (fstat(memory.get(), &about) == 0 && about.st_blocks > 0);
}

Result<FileDescriptor> make_segment(int64_t bytes) {
  // The first opening of a memfd does not count as one to the kernel's leases, so it is not kept.
  FileDescriptor first(memfd_create("nvshare-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!first) return error_format("memfd_create: %s", std::strerror(errno));
  if (fchmod(first.get(), 0600) != 0) return error_format("fchmod of a memfd: %s", std::strerror(errno));
  Result<FileDescriptor> opened = open_again(first);
  if (!opened) return opened.error();
  first.reset();
  FileDescriptor memory = std::move(*opened);
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
    Lock lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MemfdMaker::make(SegmentId segment, int64_t bytes) { push({segment, bytes, {}}); }
void MemfdMaker::discard(SegmentId segment, FileDescriptor memory, bool punch) { push({segment, 0, std::move(memory), punch}); }

void MemfdMaker::push(Job job) {
  Lock lock(mutex_);
  jobs_.push_back(std::move(job));
  const unsigned most = std::clamp(std::thread::hardware_concurrency() / 2, 1u, kThreadsMax);
  if (idle_ < jobs_.size() && threads_.size() < most) {
    // Signals are the loop's.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& problem) {
      if (threads_.empty()) give_up_last(problem.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  changed_.notify_one();
}

// No thread is to be had: the answer is that it could not be done, or not yet.
void MemfdMaker::give_up_last(const char* problem) {
  const Job& job = jobs_.back();
  spdlog::warn("cannot start a thread to make host memory for swapping: {}", problem);
  if (job.bytes == 0) {
    loop_.post([this, segment = job.segment] { answers_.discarded(segment, true); });
  } else {
    loop_.post([this, segment = job.segment] { answers_.made(segment, FileDescriptor()); });
  }
  jobs_.pop_back();
}

void MemfdMaker::work() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (jobs_.empty()) {
      ++idle_;
      changed_.wait(mutex_);
      --idle_;
      continue;
    }
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    if (job.bytes == 0) {
      const bool held = let_go(job.memory, job.punch);
      job.memory.reset();  // the loop has it too
      loop_.post([this, segment = job.segment, held] { answers_.discarded(segment, held); });
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
