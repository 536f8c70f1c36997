#include "interposer/process/process.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "interposer/gate/pacer.h"
#include "interposer/hooks/submit.h"
#include "interposer/link/tenant_use.h"
#include "interposer/log.h"
#include "interposer/once.h"
#include "interposer/process/green_contexts.h"
#include "interposer/process/least_memory.h"
#include "interposer/process/synchronize.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/symbols/unknown_calls.h"
#include "interposer/variable.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUresult;

namespace {

constexpr int64_t kGateWait_ns = 2'000'000'000;
constexpr int64_t kJoinLook_ns = 50'000'000;
constexpr int64_t kExitPatience_ns = 200'000'000;
constexpr int kTotalPatience_ms = 5'000;  // programs ask for a GPU's size once, and go by it

void say_why(char (&why)[protocol::kKeepsWhyBytes], const char* name, const char* session) {
  if (session != nullptr) {
    snprintf(why, sizeof why, "it opened a session of %s (%s)", session, name);
  } else {
    snprintf(why, sizeof why, "it called %s of the driver, which this release of nvshare does not know", name);
  }
}

bool hold_for_unknown_call(const char* name, const char* session) {
  char why[protocol::kKeepsWhyBytes];
  say_why(why, name, session);
  return this_process().hold_resident(why);
}

constexpr ChoiceVariable<protocol::Backend, 3> kBackend = {
    .name = "NVSHARE_MEMORY_BACKEND",
    .choices = {{"vmm", protocol::Backend::kVmm}, {"managed", protocol::Backend::kManaged}, {"none", protocol::Backend::kNone}},
    .unset = protocol::Backend::kVmm,
    .wrong = protocol::Backend::kVmm,
    .then = "Going on with vmm",
    .meaning = "how memory comes and goes; `managed`: the driver's demand paging; `none`: counted and limited, never swapped"};

}  // namespace

void Process::in_forked_child() { this_process().reset_after_fork(); }

// Runs before the driver's own exit handler, because it was registered later.
void Process::at_program_exit() { this_process().program_ends(); }

void Process::program_ends() {
  gate.set(Gate::kEnding);
  for_each_device([](Device& device) {
    device.turns().take(turn::ProgramEnds{});
    device.memory().arena.give_up(0);  // so that the swap engine does not wait for host memory
    device.swap_engine().stop(kExitPatience_ns);
    device.memory().arena.give_up(kExitPatience_ns);
  });
  if (active()) settling_ends(kExitPatience_ns);
  gate.clear(0);  // wakes who waits
}

Process& this_process() { return made_once<Process>(); }

void Process::start() {
  const NotCancelled whole;
  Lock lock(attach_mutex_);
  if (active()) return;
  gate.on_thread_end([](uint64_t thread) {
    this_process().captures.left_with_thread(thread);
    settle_imports(this_process());
  });
  gate.initialise();
  backend_ = value_of(kBackend);
  needed_ = scheduler_needed();
  on_unknown_call(hold_for_unknown_call);
  const char* session = nullptr;
  if (const char* name = session_opened_early(&session)) {
    say_why(held_why_, name, session);
    held_.store(true, std::memory_order_release);
    log(LogLevel::kWarning, "this program keeps all of its memory on the GPU, because %s", held_why_);
  }
  pthread_atfork(nullptr, nullptr, in_forked_child);
  atexit(at_program_exit);
  active_.store(true, std::memory_order_release);
}

// ---- devices ----

Device* Process::attach(int ordinal) {
  if (!active() || ordinal < 0 || ordinal >= kDevicesMax) return nullptr;
  if (Device* known = device(ordinal)) return known;
  const NotCancelled whole;
  Lock lock(attach_mutex_);
  if (Device* known = device(ordinal)) return known;
  protocol::Backend backend = backend_;
  int supported = 0;
  if (backend == protocol::Backend::kVmm &&
      (real_driver().cuDeviceGetAttribute(&supported, cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal) !=
           cuda::CUDA_SUCCESS ||
       supported == 0)) {
    backend = protocol::Backend::kManaged;
  }
  auto* made = new Device(*this, ordinal, 1u << ordinal, backend);
  if (!made->identify()) {
    log(LogLevel::kError, "GPU %d does not say who it is: it is not shared", ordinal);
    delete made;
    return nullptr;
  }
  if (backend != backend_)
    log(LogLevel::kWarning, "GPU %s has no virtual memory management: its memory is managed memory instead", made->gpu());
  made->memory().access.set_accessors(peers.accessors(ordinal));
  if (!made->link().start(needed_.need == SchedulerNeed::kWaits ? needed_.because : nullptr)) {
    // Nothing will ever move: the driver's own memory has all its features, legacy IPC among them.
    made->use_backend(protocol::Backend::kNone);
    made->memory().residency.set_running(true);
    if (made->link().barred()) {
      log(LogLevel::kError, "GPU %s is refused to this program, CUDA calls fail with CUDA_ERROR_NOT_PERMITTED: %s", made->gpu(),
          made->link().why_barred());
      made->refuse();
    } else if (needed_.need != SchedulerNeed::kNone) {
      log(LogLevel::kError, "no nvshare-scheduler answers, and %s: the GPU is refused to this program", needed_.because);
      made->refuse();
    } else {
      log(LogLevel::kWarning, "no nvshare-scheduler answers: this program uses GPU %s unshared", made->gpu());
    }
  }
  if (held_.load(std::memory_order_relaxed)) {
    made->memory().residency.keep_all();
    made->link().keeps_memory(held_why_);
  }
  devices_[ordinal].store(made, std::memory_order_release);
  return made;
}

size_t Process::visible_total(int ordinal, size_t real_total) {
  if (!active() || ordinal < 0 || ordinal >= kDevicesMax) return real_total;
  if (Device* known = device(ordinal)) return shown_total(real_total, known->limit().gpu_total(), known->limit().bytes());
  cuda::CUuuid uuid;
  if (!Device::ask_uuid(ordinal, &uuid)) return real_total;
  uint8_t bytes[sizeof uuid.bytes];
  memcpy(bytes, uuid.bytes, sizeof bytes);
  TenantUse use;
  if (!ask_tenant_use(*this, bytes, real_total, kTotalPatience_ms, &use)) return real_total;
  return shown_total(real_total, use.total, use.limit);
}

bool Process::current_is_gone() {
  CUcontext current = nullptr;
  if (!active() || contexts.destroyed() == 0) return false;
  if (real_driver().cuCtxGetCurrent(&current) != cuda::CUDA_SUCCESS || current == nullptr) return false;
  return is_gone(green_contexts.primary_of(current));
}

bool Process::is_gone(CUcontext current) {
  if (contexts.ordinal_of(current) >= 0) return false;
  size_t free_bytes = 0, total_bytes = 0;
  return real_driver().cuMemGetInfo_v2(&free_bytes, &total_bytes) == cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

Device* Process::current_device(CUcontext* context) {
  if (!active()) return nullptr;
  int ordinal = -1;
  if (real_driver().cuCtxGetCurrent(context) != cuda::CUDA_SUCCESS || *context == nullptr) return nullptr;
  if (real_driver().cuCtxGetDevice(&ordinal) != cuda::CUDA_SUCCESS) return nullptr;
  *context = green_contexts.primary_of(*context);
  const bool seen = contexts.ordinal_of(*context) >= 0;
  if (!seen && is_gone(*context)) return nullptr;
  Device* known = device(ordinal);
  if (known != nullptr && seen) return known;
  // A context that was made in a way that no hook saw. From now on its work is waited for, too.
  context_made(*context, ordinal);
  return device(ordinal);
}

Device* Process::owner(cuda::CUdeviceptr address, AllocationRange* range, bool* within) {
  for (auto& slot : devices_) {
    Device* candidate = slot.load(std::memory_order_acquire);
    if (candidate == nullptr) continue;
    bool inside = false;
    if (candidate->memory().blocks.find(address, range, &inside)) return candidate;
    if (inside && within != nullptr) *within = true;
  }
  return nullptr;
}

void Process::set_sync_memops(cuda::CUdeviceptr address, bool wanted) {
  if (wanted) sync_memops_wanted.store(true, std::memory_order_relaxed);
  for_each_device([&](Device& device) { device.memory().blocks.set_sync_memops(address, wanted); });
  ipc.set_sync_memops(address, wanted);
}

bool Process::overlaps(cuda::CUdeviceptr address, size_t bytes) {
  bool found = ipc.overlaps(address, bytes);
  for_each_device([&](Device& device) { found = found || device.memory().blocks.overlaps(address, bytes); });
  return found;
}

Device* Process::managed_owner(cuda::CUdeviceptr address) {
  for (auto& slot : devices_) {
    Device* candidate = slot.load(std::memory_order_acquire);
    if (candidate != nullptr && candidate->memory().blocks.owns_managed(address)) return candidate;
  }
  return nullptr;
}

// ---- contexts ----

bool Process::context_made(CUcontext context, int ordinal) {
  contexts.made(context, ordinal);
  Device* attached = attach(ordinal);
  if (attached == nullptr) return true;
  contexts.tell(*attached, context);
  return !attached->refused();
}

void Process::context_leaves(CUcontext context) {
  Device* owner = device(contexts.leaves(context));
  least_memory.forget(context);  // nobody uses it any more, so that nothing is added
  if (owner == nullptr) return;
  owner->swap_engine().context_gone(context);
  owner->memory().arena.context_gone(context);
}

void Process::context_left(CUcontext context) {
  const int ordinal = contexts.left(context);
  if (Device* owner = device(ordinal)) contexts.tell(*owner, nullptr);
  captures.left_with(context);
  settle_imports(*this);
  peers.context_gone(context);
  ipc.context_gone(context);
  // Any GPU's memory may have been freed in the order of one of its streams.
  for_each_device([&](Device& each) {
    each.memory().allocations.context_gone(context);
    each.memory().driver.context_gone(context);
  });
}

void Process::green_context_left(CUcontext context) {
  contexts.count_destroyed();
  captures.left_with(context);
  settle_imports(*this);
}

// ---- gate ----

// The gate was closed for a drain, and this thread has submitted what is in flight, or part of it: it has nothing else to do, and knows by
// its events when that will end. (Where other threads' work ends later, others' turns begin beside it; turn::step then tells it no more.)
void Process::tell_end_of_work(Device& device, uint32_t flags) {
  constexpr int64_t kLook_ns = 100'000;  // a wait takes up to that much longer than asked for
  const Mark* const mark = Gate::mark();
  if (mark == nullptr || mark->pacer == nullptr) return;
  while (gate.flags() == flags && device.turns().signs.end_wanted()) {
    const int64_t ends = mark->pacer->work_ends_at();
    if (ends == 0) return;
    const int64_t rest = ends - turn::kHandOver_ns - now_ns();
    if (rest <= 0) {
      device.turns().take(turn::WorkEndsSoon{ends});
      return;
    }
    if (rest > kLook_ns) gate.wait_change(flags, std::max(rest / 2, rest - 100 * kLook_ns));
  }
}

void Process::wait_gate_change(uint32_t flags) {
  Device* opens = nullptr;
  for_each_device([&](Device& device) {
    if ((flags & Gate::kClosedMask) == device.gate_bit()) opens = &device;
  });
  if (opens == nullptr) return gate.wait_change(flags, kGateWait_ns);  // more than one message opens it
  if (opens->turns().signs.end_wanted()) tell_end_of_work(*opens, flags);
  const Link& link = opens->link();
  gate.wait_change_or_message(flags, opens->turns().signs.hurried() ? link.readable() : -1, link.gate_wake(), kGateWait_ns);
}

void Process::wait_for_gate(const TurnSigns* joins) {
  int64_t started = now_ns();
  bool told = false;
  uint32_t waited_for = 0;
  gate.begin_waiting();
  for (;;) {
    uint32_t flags = gate.flags();
    if ((flags & Gate::kClosedMask) == 0 || (flags & Gate::kEnding) != 0) break;
    if (joins != nullptr && !joins->gang_runs()) break;
    waited_for |= flags & Gate::kClosedMask;
    for_each_device([&](Device& device) {
      if ((flags & device.gate_bit()) != 0) device.turns().want_lock();
    });
    if (joins == nullptr) {
      wait_gate_change(flags);
    } else {
      gate.wait_change(flags, kJoinLook_ns);
    }
    if (!told && now_ns() - started >= kGateWait_ns) {
      told = true;
      for_each_device([&](Device& device) {
        if ((flags & device.gate_bit()) != 0) device.link().ask_why_waiting();
      });
    }
  }
  gate.end_waiting();
  if (waited_for == 0) return;
  const int64_t now = now_ns();
  for_each_device([&](Device& device) {
    if ((waited_for & device.gate_bit()) != 0) device.turns().signs.used_from(now);
  });
}

void Process::first_submitted() {
  const int64_t now = now_ns();
  for_each_device([now](Device& device) { device.turns().signs.submitted(now); });
}

// ---- fork ----

void Process::reset_after_fork() {
  active_.store(false, std::memory_order_release);
  held_.store(false, std::memory_order_relaxed);
  attach_mutex_.reset_after_fork();
  captures.reset_after_fork();
  settling_reset_after_fork();
  least_memory.reset_after_fork();
  gate.reset_after_fork();
  Pacer::reset_after_fork();
  for_each_device([](Device& device) {
    device.link().reset_after_fork();
    device.turns().reset_after_fork();
    device.limit().reset_after_fork();
    device.swap_engine().reset_after_fork();
    device.memory().reset_after_fork();
  });
  for (auto& slot : devices_) slot.store(nullptr, std::memory_order_relaxed);
  contexts.reset_after_fork();
  green_contexts.reset_after_fork();
  vmm.reset_after_fork();
  peers.reset_after_fork();
  ipc.reset_after_fork();
  pools.reset_after_fork();
  graph_memory.reset_after_fork();
  graph_copies.reset_after_fork();
}

}  // namespace nvshare::interposer
