// Programs that use GPU memory in ways that no hook sees keep all of it where it is.
#include <stdio.h>

#include "interposer/log.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

constexpr int64_t kBeginPause_ns = 1'000'000;

}  // namespace

bool Process::hold_resident(const char* why) {
  if (!active()) return false;
  if (held_.load(std::memory_order_acquire)) return true;
  Mark* mark = Gate::mark();
  if (mark == nullptr) return false;
  const bool inside = mark->depth() > 0;  // of a call of ours, which waited for the lock
  for (;;) {
    if (!inside) wait_for_gate();
    if (ending()) return false;
    const uint32_t flags = gate.enter(mark);
    bool whole = inside || (flags & Gate::kClosedMask) == 0;
    bool shared = false;
    if (whole) {
      Lock lock(attach_mutex_);
      if (held_.load(std::memory_order_relaxed)) {
        gate.leave(mark);
        return true;
      }
      for_each_device([&](Device& device) {
        whole = whole && device.memory().residency.keep_all();
        shared = shared || device.link().shared();
      });
      if (whole) {
        snprintf(held_why_, sizeof held_why_, "%s", why);
        held_.store(true, std::memory_order_release);
        for_each_device([&](Device& device) { device.link().keeps_memory(held_why_); });
      }
    }
    gate.leave(mark);
    if (whole) {
      if (shared) log(LogLevel::kWarning, "this program keeps all of its memory on the GPU from now on, because %s", why);
      return true;
    }
    if (inside) return false;
    sleep_ns(kBeginPause_ns);  // the lock went in between, or the turn has not quite begun
  }
}

}  // namespace nvshare::interposer
