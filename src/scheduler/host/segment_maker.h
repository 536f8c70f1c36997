// Makes the scheduler's own segments of host memory on threads of its own: memfds that cannot change their size, with all pages there, so
// that they are charged to the scheduler's cgroup and the client that maps them allocates nothing.
//
// A segment is lent as an opening of its own (open_again), so that the kernel can tell, by refusing a lease, whether somebody still has it
// open or mapped, whoever that is by now. Its pages are taken away by punching holes, never by truncating: who still maps it reads zeros
// and is not killed. Nobody can seal it against that.
//
// make() and discard() are for the loop's thread, the answers come to it too. Locks: its own mutex, a leaf.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/result.h"
#include "loop/event_loop.h"
#include "scheduler/host/host_lender.h"

namespace nvshare::scheduler {

// Populated, sealed against a change of size. Blocks; any thread.
Result<FileDescriptor> make_segment(int64_t bytes);
// Another opening of it. Any thread.
Result<FileDescriptor> open_again(const FileDescriptor& memory);
// Whether somebody has it open or mapped in another opening. If not, or if `punch`, its pages are gone afterwards: those are others' that a
// holder makes in it from then on. Blocks; any thread, one at a time for a segment.
bool let_go(const FileDescriptor& memory, bool punch);

class MemfdMaker : public SegmentMaker {
 public:
  struct Answers {
    std::function<void(SegmentId segment, FileDescriptor memory)> made;  // none: it could not be, the log says why
    std::function<void(SegmentId segment, bool still_held)> discarded;
  };
  // The loop outlives this.
  MemfdMaker(EventLoop& loop, Answers answers);
  ~MemfdMaker() override;  // finishes what is under way; no answer comes any more
  MemfdMaker(const MemfdMaker&) = delete;
  MemfdMaker& operator=(const MemfdMaker&) = delete;

  void make(SegmentId segment, int64_t bytes) override;
  void discard(SegmentId segment, FileDescriptor memory, bool punch) override;

 private:
  struct Job {
    SegmentId segment = 0;
    int64_t bytes = 0;  // 0: discard
    FileDescriptor memory;
    bool punch = false;
  };
  void push(Job job);
  void give_up_last(const char* problem) REQUIRES(mutex_);
  void work();

  EventLoop& loop_;
  Answers answers_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  size_t idle_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);  // only the end, which waits for them, needs no lock
};

}  // namespace nvshare::scheduler
