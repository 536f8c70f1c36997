// The loop that both launch benchmarks share: orders on standard input, one JSON line each on standard output.
//   launch N            N empty launches back to back, then one synchronisation: nanoseconds a launch
//   alloc BYTES N       N times allocate and free: microseconds each
//   many COUNT BYTES    COUNT allocations, then all freed: milliseconds
// Two copies of one program, one under nvshare and one not, take orders in turn, so that drift hits both alike.
// `Gpu` has launch(), synchronize(), allocate(bytes) -> pointer, release(pointer); it ends the process on errors.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace bench {

inline double now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

template <class Gpu>
void serve_launch(Gpu& gpu, unsigned long long count) {
  for (int i = 0; i < 1000; ++i) {  // has the lock again, and the clocks up
    gpu.launch();
  }
  gpu.synchronize();
  const double begin = now_ns();
  for (unsigned long long i = 0; i < count; ++i) {
    gpu.launch();
  }
  const double submitted = now_ns();
  gpu.synchronize();
  const double each = static_cast<double>(count);
  std::printf("{\"launch_ns\": %.1f, \"submit_ns\": %.1f}\n", (now_ns() - begin) / each, (submitted - begin) / each);
}

template <class Gpu>
void serve_alloc(Gpu& gpu, size_t bytes, unsigned long long count) {
  gpu.release(gpu.allocate(bytes));  // not the first one, which may grow an arena
  std::vector<double> pairs, allocations, frees;
  for (unsigned long long i = 0; i < count; ++i) {
    const double begin = now_ns();
    const auto pointer = gpu.allocate(bytes);
    const double allocated = now_ns();
    gpu.release(pointer);
    const double end = now_ns();
    pairs.push_back((end - begin) * 1e-3);
    allocations.push_back((allocated - begin) * 1e-3);
    frees.push_back((end - allocated) * 1e-3);
  }
  std::printf("{\"pair_us\": %.3f, \"alloc_us\": %.3f, \"free_us\": %.3f}\n", median(pairs), median(allocations), median(frees));
}

template <class Gpu>
void serve_many(Gpu& gpu, unsigned long long count, size_t bytes) {
  std::vector<decltype(gpu.allocate(bytes))> pointers;
  pointers.reserve(count);
  const double begin = now_ns();
  for (unsigned long long i = 0; i < count; ++i) {
    pointers.push_back(gpu.allocate(bytes));
  }
  const double allocated = now_ns();
  for (const auto pointer : pointers) {
    gpu.release(pointer);
  }
  std::printf("{\"alloc_ms\": %.3f, \"free_ms\": %.3f}\n", (allocated - begin) * 1e-6, (now_ns() - allocated) * 1e-6);
}

template <class Gpu>
int serve(Gpu& gpu) {
  gpu.launch();
  gpu.synchronize();
  std::printf("{\"event\": \"ready\"}\n");
  std::fflush(stdout);
  char line[128];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    unsigned long long first = 0;
    unsigned long long second = 0;
    if (std::sscanf(line, "launch %llu", &first) == 1) {
      serve_launch(gpu, first);
    } else if (std::sscanf(line, "alloc %llu %llu", &first, &second) == 2) {
      serve_alloc(gpu, static_cast<size_t>(first), second);
    } else if (std::sscanf(line, "many %llu %llu", &first, &second) == 2) {
      serve_many(gpu, first, static_cast<size_t>(second));
    } else {
      std::printf("{\"error\": \"unknown order\"}\n");
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace bench
