// What a driver answers, written down: sequences of calls that print one line a call, "WHAT: CODE [DATA]", with nothing in it that differs
// from run to run. The same sequence natively and under nvshare must print the same lines (checks/answers.py, test/e2e/answers_test.cc).
//
// Calls go by name through dlsym, with the types of cuda.h written out where they are used: the program needs no toolkit, and a mistake in
// src/cuda cannot hide in it. Each sequence runs in a process of its own.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace answers {

using Result = int;
using Address = unsigned long long;
using Handle = unsigned long long;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Graph = struct GraphTag*;
using Node = struct NodeTag*;
using Executable = struct ExecutableTag*;
using Event = struct EventTag*;

inline constexpr Result kAbsent = -1;  // the driver has no such function
inline constexpr size_t kMiB = 1 << 20;
inline constexpr size_t kPage = 2 * kMiB;
inline constexpr unsigned kNonBlocking = 1;

void* find(const char* name);

// The argument types must be exactly the function's.
template <typename... Arguments>
Result call(const char* name, Arguments... arguments) {
  auto* function = reinterpret_cast<Result (*)(Arguments...)>(find(name));
  return function != nullptr ? function(arguments...) : kAbsent;
}

// Ends the process unless the call succeeds: what a sequence stands on.
template <typename... Arguments>
void must(const char* name, Arguments... arguments) {
  const Result result = call(name, arguments...);
  if (result == 0) return;
  std::printf("the sequence cannot go on: %s returned %d\n", name, result);
  std::fflush(stdout);
  std::_Exit(3);
}

[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);
inline void say_result(const std::string& what, Result result) { say("%s: %d", what.c_str(), result); }

struct Location {
  int type;  // 1: a GPU
  int id;
};
struct AllocationProperties {
  int type;  // 1: pinned
  int handle_types;
  Location location;
  void* meta_data;
  unsigned char flags[8];
};
struct Access {
  Location location;
  int flags;  // 3: read and write
};
inline AllocationProperties on_gpu(int device, int handle_types = 0) { return {1, handle_types, {1, device}, nullptr, {}}; }

// ---- what main gives to sequences ----
int device_count();
// The primary context of that GPU, made current.
Context use(int device);
// A kernel of ours, run to its end: from then on a program under nvshare has had a turn.
void run_kernel();
// The sequence holds its memory. With --go it stands still here until that file is there, and whoever waits may take its memory away.
void settle();
// The sequence may call what must never be called on a machine with NVLink that others use (--multicast).
bool multicast_allowed();

// `bytes` of device memory become and are compared with a pattern; false says that a byte differs. With --cold neither does anything.
void write_pattern(Address address, size_t bytes, uint32_t seed);
bool has_pattern(Address address, size_t bytes, uint32_t seed);

struct Sequence {
  const char* name;
  int devices;  // 0: not compared with what a driver says natively
  void (*run)();
};

void virtual_calls();
void virtual_handles();
void hand_graphs();
void hand_graphs_updated();
void hand_graphs_elsewhere();
void textures();
void two_gpus();
void two_gpus_apart();
void two_gpus_graphs();
void two_gpus_pools();
void two_gpus_pools_in_rows();
void two_gpus_peers_of_contexts();
void two_gpus_elsewhere();
void two_gpus_pools_opened();
void two_gpus_fills();
void handles_without_context();
void refused_frees_in_captures();
void attached_contexts();
void attached_primary();
void detached_primary();
void gone_contexts();
void pools_outlive_resets();
void pools_outlive_contexts();
void plain_after_pools();
void asked_of_gone_contexts();
void freed_in_gone_contexts();
void small_mappings();
void pool_mappings();
void green_contexts();
void green_contexts_gone();
void green_streams();
void green_batches();
void green_batches_alone();
void host_pointers();
void changed_copies();
void two_gpus_changed_copies();
void copies_changed_later();
void changed_nodes();
void pointers();
void stream_ordered();
void freed_twice();
void freed_beside();
void freed_in_order();
void mapped_without_access();
void attached_to_streams();
void refusals();
void array_copies();
void for_managed_memory();
void pools();
void captured_calls();
void captured_elsewhere();
void freed_in_captures();
void copies_beside_captures();
void beside_captures();
void memop_graphs();

}  // namespace answers
