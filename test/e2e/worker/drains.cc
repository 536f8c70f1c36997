// Modes whose GPU work does not end, or not while something else waits; and programs that people wait for.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "e2e/worker/block.h"
#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {
namespace {

constexpr uint64_t kForEver_ns = 3'600'000'000'000;

int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// A kernel that never ends, and a thread that waits for it. With --threads 1 another thread goes on submitting beside it, on its own
// stream, and counts its rounds aloud.
void run_endless(const Options& options) {
  CUcontext context = retain_primary();
  Desk desk;
  auto ballast = filled(desk.place, options.number("hold", 64u << 20), 1);
  ballast->verify_checksum(desk.scratch);
  std::thread beside([&] {
    if (options.number("threads", 0) == 0) return;
    check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
    Desk own;
    auto block = filled(own.place, 65536, 2);
    for (uint64_t round = 1; !options.told_to_stop(); ++round) {
      for (uint64_t i = 0; i < 10; ++i) block->mix(round * 10 + i);
      block->verify_checksum(own.scratch);
      if (round % 50 == 0) {
        std::printf("round %" PRIu64 "\n", round);
        std::fflush(stdout);
      }
      usleep(1000);
    }
    block->verify_bytes();
  });
  check(launch(desk.place.kernels.spin, desk.place.stream, kForEver_ns), "sim_spin");
  say("spinning");
  beside.join();
  check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");  // does not return
}

namespace {

// What an interpreter's lock is to its callbacks: they run on a thread of the driver's, which holds the stream up until it has the lock.
struct Interpreter {
  std::mutex lock;
  uint64_t callbacks = 0;
};

void callback_of_host_function(void* data) {
  auto* interpreter = static_cast<Interpreter*>(data);
  std::lock_guard lock(interpreter->lock);
  ++interpreter->callbacks;
}

void callback_of_stream(CUstream, CUresult, void* data) { callback_of_host_function(data); }

}  // namespace

// Host callbacks that take a lock which the submitting thread holds while it submits: held back at the gate, it holds the stream up.
void run_interpreter_lock(const Options& options) {
  retain_primary();
  Desk desk;
  CUstream stream = desk.place.stream;
  auto ballast = filled(desk.place, options.number("hold", 64u << 20), 1);
  auto block = filled(desk.place, 65536, 2);
  Interpreter interpreter;
  uint64_t submitted = 0;
  say("calling back");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    {
      std::lock_guard lock(interpreter.lock);
      // Each submission takes up to 20 ms while others wait: the stream stands still, so the bound on work in flight holds it.
      for (uint64_t i = 0; i < 4; ++i) {
        block->mix(round * 4 + i);
        if (i % 2 == 0) {
          check(cuda().cuLaunchHostFunc(stream, callback_of_host_function, &interpreter), "cuLaunchHostFunc");
        } else {
          check(cuda().cuStreamAddCallback(stream, callback_of_stream, &interpreter, 0), "cuStreamAddCallback");
        }
        ++submitted;
        usleep(2000);
      }
    }
    block->verify_checksum(desk.scratch);
    usleep(200'000);  // as long without the lock as with it: some attempts to drain succeed, some do not
  }
  check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
  if (interpreter.callbacks != submitted) {
    fail(kExitUnexpected, "%" PRIu64 " of %" PRIu64 " callbacks ran", interpreter.callbacks, submitted);
  }
  ballast->verify_checksum(desk.scratch);
  block->verify_bytes();
  std::printf("%" PRIu64 " callbacks\n", submitted);
  release_primary();
}

// Very many threads that each submit now and then, on a few streams.
void run_crowd(const Options& options) {
  CUcontext context = retain_primary();
  constexpr size_t kDesks = 8;
  std::vector<std::unique_ptr<Desk>> desks;
  for (size_t i = 0; i < kDesks; ++i) desks.push_back(std::make_unique<Desk>());
  auto ballast = filled(desks[0]->place, options.number("hold", 64u << 20), 1);
  const uint64_t count = options.number("threads", 1000);
  const uint64_t pause_us = options.number("pause-us", 100'000);  // at most, between one thread's rounds
  std::atomic<uint64_t> began{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
      CUdeviceptr scratch = 0;
      check(cuda().cuMemAlloc_v2(&scratch, 8), "cuMemAlloc");
      std::mt19937_64 random(t);
      auto block = filled(desks[t % kDesks]->place, 2048, t);
      block->verify_checksum(scratch);
      if (++began == count) say("all began");
      for (uint64_t round = 0; !options.told_to_stop(); ++round) {
        for (uint64_t i = 0; i < 4; ++i) block->mix(round * 4 + i);
        block->verify_checksum(scratch);  // which waits: without it the threads submit more than a busy machine's stand-in gets done
        usleep(static_cast<useconds_t>(random() % pause_us));
      }
      block->verify_bytes();
    });
  }
  for (std::thread& thread : threads) thread.join();
  ballast->verify_checksum(desks[0]->scratch);
  release_primary();
}

// Works for --busy-us, pauses for --pause-us, --steps times; says how long it waited beyond its work each time.
void run_cells(const Options& options) {
  retain_primary();
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 64u << 20), 1);
  block->verify_checksum(desk.scratch);
  auto worked_on = filled(desk.place, 65536, 2);
  const uint64_t busy_ns = options.number("busy-us", 5000) * 1000;
  std::vector<int64_t> waits;
  say("serving");
  for (uint64_t round = 0; round < options.number("steps", 20) && !options.told_to_stop(); ++round) {
    usleep(static_cast<useconds_t>(options.number("pause-us", 200'000)));
    const int64_t wanted = monotonic_ns();
    worked_on->mix_slowly(round, busy_ns);
    check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
    waits.push_back(std::max<int64_t>(monotonic_ns() - wanted - static_cast<int64_t>(busy_ns), 0));
    worked_on->verify_checksum(desk.scratch);
  }
  std::sort(waits.begin(), waits.end());
  if (!waits.empty()) {
    std::printf("waits_ms p50 %" PRId64 " p95 %" PRId64 " longest %" PRId64 "\n", waits[waits.size() / 2] / 1'000'000,
                waits[(waits.size() * 95 + 99) / 100 - 1] / 1'000'000, waits.back() / 1'000'000);
  }
  block->verify_bytes();
  worked_on->verify_bytes();
  release_primary();
}

}  // namespace nvshare::e2e
