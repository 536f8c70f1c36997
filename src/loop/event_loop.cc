#include "loop/event_loop.h"

#include <spdlog/spdlog.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

namespace nvshare {
namespace {

constexpr int64_t kBetweenWarnings_ns = 10'000'000'000;

}  // namespace

struct EventLoop::Core {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);
  asio::signal_set signals{context};
  OnException on_exception = OnException::kLog;
  int64_t warned_ns = 0;  // of the last line about an exception; 0: none yet
  int unwarned = 0;       // exceptions since

  template <typename Call>
  void guarded(const Call& call) {
    if (on_exception == OnException::kLetThrough) return call();
    try {
      call();
    } catch (const std::exception& problem) {
      note_exception(problem.what());
    }
  }

  void note_exception(const char* what) {
    const int64_t now = monotonic_ns();
    if (warned_ns != 0 && now - warned_ns < kBetweenWarnings_ns) {
      ++unwarned;
      return;
    }
    const std::string more = unwarned > 0 ? " (" + std::to_string(unwarned) + " more since the last such line)" : "";
    spdlog::warn("an error of this program's own: {}; it goes on{}", what, more);
    warned_ns = now;
    unwarned = 0;
  }

  void await_signal(std::function<void(int)> callback) {
    signals.async_wait([this, callback = std::move(callback)](const asio::error_code& error, int signal) mutable {
      if (error) return;
      guarded([&] { callback(signal); });
      await_signal(std::move(callback));
    });
  }
};

EventLoop::EventLoop(OnException on_exception) : core_(std::make_unique<Core>()) { core_->on_exception = on_exception; }
EventLoop::~EventLoop() = default;

void EventLoop::run() { core_->context.run(); }
void EventLoop::stop() { core_->context.stop(); }
void EventLoop::post(Callback call) {
  asio::post(core_->context, [core = core_.get(), call = std::move(call)] { core->guarded(call); });
}

void EventLoop::on_signals(std::initializer_list<int> signals, std::function<void(int)> callback) {
  for (int signal : signals) core_->signals.add(signal);
  core_->await_signal(std::move(callback));
}

// Shared with the operations in flight: these may end after the Watch is gone, and then find `alive` false.
struct Watch::Core : std::enable_shared_from_this<Watch::Core> {
  Core(EventLoop& loop, int fd, Callback readable, Callback writable)
      : owner(loop.core()), descriptor(loop.core().context, fd), on_readable(std::move(readable)), on_writable(std::move(writable)) {}

  void await_readable() {
    if (paused || std::exchange(awaits_readable, true)) return;
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](const asio::error_code& error) {
      self->awaits_readable = false;
      if (!self->alive || self->paused || error) return;
      self->owner.guarded(self->on_readable);
      if (self->alive) self->await_readable();
    });
  }

  void await_writable() {
    if (std::exchange(awaits_writable, true)) return;
    descriptor.async_wait(asio::posix::stream_descriptor::wait_write, [self = shared_from_this()](const asio::error_code& error) {
      self->awaits_writable = false;
      if (self->alive && !error) self->owner.guarded(self->on_writable);
    });
  }

  EventLoop::Core& owner;
  asio::posix::stream_descriptor descriptor;
  Callback on_readable;
  Callback on_writable;
  bool alive = true;
  bool paused = false;
  bool awaits_readable = false;
  bool awaits_writable = false;
};

Watch::Watch(EventLoop& loop, int fd, Callback on_readable, Callback on_writable)
    : core_(std::make_shared<Core>(loop, fd, std::move(on_readable), std::move(on_writable))) {
  core_->await_readable();
}

Watch::~Watch() {
  if (core_ == nullptr) return;
  core_->alive = false;
  core_->descriptor.release();  // the descriptor is the owner's to close
}

Watch::Watch(Watch&& other) noexcept = default;

Watch& Watch::operator=(Watch&& other) noexcept {
  std::swap(core_, other.core_);
  return *this;
}

void Watch::want_writable() { core_->await_writable(); }

void Watch::pause() { core_->paused = true; }

void Watch::resume() {
  core_->paused = false;
  core_->await_readable();
}

struct Timer::Core : std::enable_shared_from_this<Timer::Core> {
  Core(EventLoop& loop, Callback call) : owner(loop.core()), timer(loop.core().context), callback(std::move(call)) {}

  EventLoop::Core& owner;
  asio::steady_timer timer;
  Callback callback;
  uint64_t generation = 0;  // an expiry that was already queued when the timer was armed anew must not fire
};

Timer::Timer(EventLoop& loop, Callback callback) : core_(std::make_shared<Core>(loop, std::move(callback))) {}

Timer::~Timer() { cancel(); }

void Timer::arm(int64_t deadline_ns) {
  uint64_t generation = ++core_->generation;
  core_->timer.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_ns)));
  core_->timer.async_wait([core = core_, generation](const asio::error_code& error) {
    if (!error && core->generation == generation) core->owner.guarded(core->callback);
  });
}

void Timer::cancel() {
  ++core_->generation;
  core_->timer.cancel();
}

int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace nvshare
