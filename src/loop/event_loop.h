// A daemon's event loop: descriptors, timers, signals and calls from other threads, on one thread. The only place that knows Asio.
//
// Everything belongs to the thread that calls run(), except post(). Callbacks run on that thread, never nested. A Watch or Timer may be
// destroyed at any time, also by its own callback; afterwards its callback is not called again. An exception ends the callback that threw
// it, with a line in the log, never the loop: who calls into code that might throw, and has to tidy up, catches it first. A loop may be
// made to let it through instead, which ends run().
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>

namespace nvshare {

using Callback = std::function<void()>;

class EventLoop {
 public:
  enum class OnException { kLog, kLetThrough };
  explicit EventLoop(OnException on_exception = OnException::kLog);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void run();   // until stop()
  void stop();  // from the loop's thread

  // Runs `call` on the loop's thread, later. Any thread; the loop must still exist.
  void post(Callback call);

  void on_signals(std::initializer_list<int> signals, std::function<void(int signal)> callback);

  struct Core;
  Core& core() { return *core_; }

 private:
  std::unique_ptr<Core> core_;
};

// Calls back while a descriptor is readable (end of file included), and while it is writable if that was asked for.
// Borrows the descriptor: the owner destroys the Watch first.
class Watch {
 public:
  Watch() = default;
  Watch(EventLoop& loop, int fd, Callback on_readable, Callback on_writable = {});
  ~Watch();
  Watch(Watch&&) noexcept;
  Watch& operator=(Watch&&) noexcept;

  // Asks for one call of on_writable, when the descriptor next is.
  void want_writable();

  // Between the two on_readable is not called; what came meanwhile is seen after resume().
  void pause();
  void resume();

  struct Core;

 private:
  std::shared_ptr<Core> core_;
};

class Timer {
 public:
  Timer(EventLoop& loop, Callback callback);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Calls back once, at `deadline_ns` of CLOCK_MONOTONIC (at once if it has passed). Replaces an earlier deadline.
  void arm(int64_t deadline_ns);
  void cancel();

  struct Core;

 private:
  std::shared_ptr<Core> core_;
};

// CLOCK_MONOTONIC.
int64_t monotonic_ns();

}  // namespace nvshare
