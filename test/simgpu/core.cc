// The process: its start, fork, and the checks at the head of every call.
#include "simgpu/core.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "simgpu/config.h"
#include "simgpu/mps.h"

namespace simgpu {
namespace {

std::atomic<Process*> g_process{nullptr};
std::atomic<bool> g_forked{false};

// The driver's state does not survive fork(): its threads are gone, its memory is not the child's.
void in_forked_child() {
  if (g_process.load() == nullptr) return;
  g_process.store(nullptr);
  g_forked.store(true);
}

}  // namespace

thread_local ThreadState t_thread = {};

Process* process() { return g_process.load(std::memory_order_acquire); }

CUresult initialise_process() {
  if (g_forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (process() != nullptr) return CUDA_SUCCESS;
  static std::mutex* const kStarting = new std::mutex;
  std::lock_guard lock(*kStarting);
  if (process() != nullptr) return CUDA_SUCCESS;
  Machine& machine = Machine::get();
  if (machine.device_count() == 0) return CUDA_ERROR_NO_DEVICE;
  if (!config().faults.empty() && !set_faults(machine.faults(), config().faults)) {
    std::fprintf(stderr, "simgpu: SIMGPU_FAULTS is '%s'; test/simgpu/README.md has the list of faults\n", config().faults.c_str());
    std::abort();
  }
  if (const CUresult result = attach_to_mps()) return result;
  auto* created = new Process;
  created->slot = machine.register_process();
  if (created->slot < 0) {
    std::fprintf(stderr, "simgpu: more than %d processes\n", kMaxProcesses);
    delete created;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  pthread_atfork(nullptr, nullptr, in_forked_child);
  g_process.store(created, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult enter_process() {
  if (process() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (mps_is_lost()) return CUDA_ERROR_UNKNOWN;
  if (Machine::get().faults().device_lost.load(std::memory_order_relaxed) != 0) return CUDA_ERROR_UNKNOWN;
  return CUDA_SUCCESS;
}

CUresult enter(Context** context) {
  if (const CUresult result = enter_process()) return result;
  Context* current = t_thread.current();
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!current->alive.load(std::memory_order_acquire)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = current;
  return static_cast<CUresult>(current->error.load(std::memory_order_acquire));
}

void report_fault(Context& context, CUresult error, const char* text) {
  here().faults.fetch_add(1);
  Machine::get().shared().faults_seen.fetch_add(1);
  int none = 0;
  context.error.compare_exchange_strong(none, static_cast<int>(error));
  std::fprintf(stderr, "simgpu: fault: pid %d: %s (error %d)\n", getpid(), text, static_cast<int>(error));
}

const char* work_in_flight_on(uint64_t address, uint64_t bytes) {
  Process& process = here();
  std::vector<Context*> contexts;
  {
    std::lock_guard lock(process.mutex);
    contexts = process.contexts;
  }
  std::vector<Span> spans;
  for (Context* context : contexts) {
    std::lock_guard context_lock(context->mutex);
    for (Stream* stream : context->streams) {
      std::lock_guard stream_lock(stream->mutex);
      for (const Stream::Entry& entry : stream->queue) {
        if (!entry.work) continue;
        spans.clear();
        entry.work->spans(spans);
        for (const Span& span : spans) {
          if (span.address < address + bytes && address < span.address + span.bytes) return entry.work->name();
        }
      }
    }
  }
  return nullptr;
}

bool fault_strikes(const std::atomic<uint32_t>& rate_ppm) {
  const uint32_t rate = rate_ppm.load(std::memory_order_relaxed);
  if (rate == 0) return false;
  static std::atomic<uint64_t> state{[] {
    const char* seed = std::getenv("SIMGPU_SEED");
    return seed != nullptr ? std::strtoull(seed, nullptr, 10) : static_cast<uint64_t>(getpid());
  }()};
  uint64_t z = state.fetch_add(0x9e3779b97f4a7c15) + 0x9e3779b97f4a7c15;  // splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (z ^ (z >> 31)) % 1000000 < rate;
}

}  // namespace simgpu
