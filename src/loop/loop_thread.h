// An event loop with a thread of its own. Objects that live on it are made and destroyed on any thread: they set up and take down what
// belongs to the loop by call(). An exception of a callback ends the program, as one of any thread does.
#pragma once

#include <functional>
#include <thread>

#include "loop/event_loop.h"

namespace nvshare {

class LoopThread {
 public:
  LoopThread();   // starts the thread
  ~LoopThread();  // what was posted before is done first; outlives everything that lives on the loop
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  EventLoop& loop() { return loop_; }
  // Later, on the loop's thread, in the order of the calls. Any thread.
  void post(Callback call) { loop_.post(std::move(call)); }
  // Runs it on the loop's thread, after what was posted before, and returns when it has ended; at once where this is the loop's thread.
  // Nobody calls it with a mutex held that a callback of the loop takes. What it throws is the caller's.
  void call(const Callback& step);

 private:
  EventLoop loop_{EventLoop::OnException::kLetThrough};
  std::thread thread_;  // last
};

}  // namespace nvshare
