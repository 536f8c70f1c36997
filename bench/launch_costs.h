// The loop that both launch benchmarks share: orders on standard input, one JSON line each on standard output.
//   launch N            N empty launches back to back, then one synchronisation: nanoseconds a launch
//   alloc BYTES N       N times allocate and free: microseconds each
//   many COUNT BYTES    COUNT allocations, then all freed: milliseconds
//   pin CPU             this thread, which does all of the above, runs on that processor only from now on
//   ab N ROUNDS         N launches as the program calls them, twice N straight to the driver's own function, N as before; ROUNDS times:
//                       nanoseconds a launch of both and the median of the rounds' ratios. Only where Gpu::kHasStraight.
// Two copies of one program, one under nvshare and one not, take orders in turn, so that drift hits both alike.
// `Gpu` has launch(), synchronize(), allocate(bytes) -> pointer, release(pointer), and launch_straight() if kHasStraight; it ends the
// process on errors. C++17: nvcc compiles it too.
#pragma once

#include <sched.h>
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

inline void serve_pin(unsigned long long processor) {
  cpu_set_t only;
  CPU_ZERO(&only);
  if (processor < CPU_SETSIZE) {
    CPU_SET(processor, &only);
  }
  if (sched_setaffinity(0, sizeof only, &only) != 0) {  // of a thread: 0 is the calling one
    std::printf("{\"error\": \"cannot run on processor %llu alone\"}\n", processor);
    return;
  }
  std::printf("{\"pinned\": %llu}\n", processor);
}

// Nanoseconds a launch of `count` in a row, with the synchronisation after them.
template <class Gpu, class Launch>
double batch(Gpu& gpu, unsigned long long count, Launch launch) {
  const double begin = now_ns();
  for (unsigned long long i = 0; i < count; ++i) {
    launch();
  }
  gpu.synchronize();
  return (now_ns() - begin) / static_cast<double>(count);
}

template <class Gpu>
void serve_ab(Gpu& gpu, unsigned long long count, unsigned long long rounds) {
  if constexpr (Gpu::kHasStraight) {
    const auto called = [&] { return batch(gpu, count, [&] { gpu.launch(); }); };
    const auto straight = [&] { return batch(gpu, count, [&] { gpu.launch_straight(); }); };
    called();  // has the lock again, and the clocks up
    straight();
    std::vector<double> all_called, all_straight, ratios;
    for (unsigned long long i = 0; i < rounds; ++i) {
      const double a1 = called();
      const double b1 = straight();
      const double b2 = straight();
      const double a2 = called();
      all_called.insert(all_called.end(), {a1, a2});
      all_straight.insert(all_straight.end(), {b1, b2});
      ratios.push_back((a1 + a2) / (b1 + b2));
    }
    std::printf("{\"called_ns\": %.1f, \"straight_ns\": %.1f, \"ratio\": %.5f, \"hooked\": %s}\n", median(all_called), median(all_straight),
                median(ratios), gpu.hooked() ? "true" : "false");
  } else {
    std::printf("{\"error\": \"this program knows one way to launch only\"}\n");
  }
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
    } else if (std::sscanf(line, "pin %llu", &first) == 1) {
      serve_pin(first);
    } else if (std::sscanf(line, "ab %llu %llu", &first, &second) == 2) {
      serve_ab(gpu, first, second);
    } else {
      std::printf("{\"error\": \"unknown order\"}\n");
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace bench
