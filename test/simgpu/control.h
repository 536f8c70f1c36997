// What tests ask the stand-in itself; exported by libcuda.so.1 beside the driver's interface, and found with dlsym by programs that also
// run on a real driver.
//
// Commands that read (of this process): submissions, violations, faults, events (that live), event_queries (made so far); of all processes
// since the state file was made: all_submissions, all_violations, all_faults, compute_busy_ns, to_device_busy_ns, to_host_busy_ns,
// used_bytes (the last four of device 0). Commands that act: forbid_submissions (from now on every kernel, graph, copy, fill and prefetch
// that this process submits is a violation), forbid_kernels (only kernels and graphs are), allow; make_context (on device 0, and current,
// as parts of a driver make one without its interface); "set_faults LIST" (README.md), for all processes, at once.
//
// Returns a CUresult: 500 for a command that does not exist. Thread-safe. Works before cuInit, but for forbid and allow.
#pragma once

#include <cstdint>

extern "C" int simgpu_control(const char* command, uint64_t* result);
