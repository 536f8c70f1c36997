// Makes the scheduler's own segments of host memory on threads of its own: memfds that cannot change their size, with all pages there, so
// that they are charged to the scheduler's cgroup and the client that maps them allocates nothing.
//
// make() and discard() are for the loop's thread, the answers come to it too. Locks: its own mutex, a leaf.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "scheduler/engine.h"
#include "scheduler/event_loop.h"

namespace nvshare::scheduler {

// Populated, sealed against a change of size. Blocks; any thread.
Result<FileDescriptor> make_segment(int64_t bytes);

class MemfdMaker : public SegmentMaker {
 public:
  struct Answers {
    std::function<void(SegmentId segment, FileDescriptor memory)> made;  // none: it could not be, the log says why
    std::function<void(SegmentId segment)> discarded;
  };
  // The loop outlives this.
  MemfdMaker(EventLoop& loop, Answers answers);
  ~MemfdMaker() override;  // finishes what is under way; no answer comes any more
  MemfdMaker(const MemfdMaker&) = delete;
  MemfdMaker& operator=(const MemfdMaker&) = delete;

  void make(SegmentId segment, int64_t bytes) override;
  void discard(SegmentId segment, FileDescriptor memory) override;

 private:
  struct Job {
    SegmentId segment = 0;
    int64_t bytes = 0;  // 0: discard
    FileDescriptor memory;
  };
  void push(Job job);
  void work();

  EventLoop& loop_;
  Answers answers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nvshare::scheduler
