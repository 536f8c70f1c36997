#include "simgpu/control.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "simgpu/context.h"
#include "simgpu/core.h"

namespace simgpu {

// event.cc: of this process
uint64_t living_events();
uint64_t event_queries();

namespace {

struct Counter {
  const char* name;
  uint64_t (*read)();
};
constexpr Counter kCounters[] = {
    {"submissions", [] { return process() != nullptr ? here().submissions.load() : 0; }},
    {"violations", [] { return process() != nullptr ? here().violations.load() : 0; }},
    {"faults", [] { return process() != nullptr ? here().faults.load() : 0; }},
    {"all_submissions", [] { return Machine::get().shared().submissions.load(); }},
    {"all_violations", [] { return Machine::get().shared().violations.load(); }},
    {"all_faults", [] { return Machine::get().shared().faults_seen.load(); }},
    {"compute_busy_ns", [] { return Machine::get().busy_ns(0, Engine::kCompute); }},
    {"to_device_busy_ns", [] { return Machine::get().busy_ns(0, Engine::kToDevice); }},
    {"to_host_busy_ns", [] { return Machine::get().busy_ns(0, Engine::kToHost); }},
    {"events", [] { return process() != nullptr ? living_events() : 0; }},
    {"event_queries", [] { return event_queries(); }},
    {"used_bytes", [] { return Machine::get().memory(0).used; }},
};

struct Switch {
  const char* name;
  uint32_t forbidden;
};
constexpr Switch kSwitches[] = {{"allow", 0}, {"forbid_kernels", 1}, {"forbid_submissions", 2}};

}  // namespace

SIM_API int simgpu_control(const char* command, uint64_t* result) {
  for (const Counter& counter : kCounters) {
    if (std::strcmp(command, counter.name) != 0) continue;
    if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *result = counter.read();
    return CUDA_SUCCESS;
  }
  for (const Switch& each : kSwitches) {
    if (std::strcmp(command, each.name) != 0) continue;
    if (process() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    here().forbidden.store(each.forbidden, std::memory_order_seq_cst);
    return CUDA_SUCCESS;
  }
  if (std::strcmp(command, "make_context") == 0) {
    if (process() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    if (t_thread.depth == static_cast<int>(t_thread.stack.size())) return CUDA_ERROR_INVALID_VALUE;
    Context* context = open_context(0, 0, nullptr);
    if (context == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    t_thread.stack[static_cast<size_t>(t_thread.depth++)] = context;
    return CUDA_SUCCESS;
  }
  constexpr char kSetFaults[] = "set_faults ";
  if (std::strncmp(command, kSetFaults, sizeof kSetFaults - 1) == 0) {
    return set_faults(Machine::get().faults(), command + sizeof kSetFaults - 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_ERROR_NOT_FOUND;
}

}  // namespace simgpu
