// Sees to it that the clients' socket is this scheduler's own. Somebody may remove it (who tidies up), or put one in its place, where its
// folder can be written: root in a container that has it mounted so. One thread, the loop's.
#pragma once

#include <functional>

#include "base/fd.h"
#include "loop/event_loop.h"
#include "scheduler/sockets/runtime_dir.h"

namespace nvshare::scheduler {

class SocketGuard {
 public:
  // `listener`: takes the socket that was made in place of the one that is gone. Begins when the clients' socket is there.
  SocketGuard(EventLoop& loop, RuntimeDir& folder, std::function<void(FileDescriptor)> listener);

 private:
  void watch_folder();
  void look();

  RuntimeDir& folder_;
  const std::function<void(FileDescriptor)> listener_;
  FileDescriptor events_;  // inotify; none where the kernel gives none: nothing is noticed, then
  int64_t looked_at_ = 0;  // CLOCK_MONOTONIC ns
  Watch watch_;
  Timer timer_;
};

}  // namespace nvshare::scheduler
