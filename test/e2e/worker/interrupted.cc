// Programs whose calls are interrupted, or begin where something is missing: by signals, by the end of their thread, without descriptors.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <iterator>
#include <thread>

#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {
namespace {

// As a profiler does it.
void signal_every(int microseconds) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  if (sigaction(SIGALRM, &action, nullptr) != 0) fail(kExitUnexpected, "no handler of signals");
  const itimerval timer{{0, microseconds}, {0, microseconds}};
  if (setitimer(ITIMER_REAL, &timer, nullptr) != 0) fail(kExitUnexpected, "no timer");
}

struct Grower {
  CUcontext context = nullptr;
  size_t bytes = 0;
  std::atomic<bool> begins{false};
  std::atomic<bool> returned{false};
  CUdeviceptr address = 0;
};

void* grow_in_a_thread(void* argument) {
  auto& grower = *static_cast<Grower*>(argument);
  check(cuda().cuCtxSetCurrent(grower.context), "cuCtxSetCurrent");
  grower.begins.store(true);
  check(cuda().cuMemAlloc_v2(&grower.address, grower.bytes), "cuMemAlloc");
  grower.returned.store(true);
  pthread_testcancel();
  return nullptr;
}

struct Freer {
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  std::atomic<bool> begins{false};
};

void* free_in_a_thread(void* argument) {
  auto& freer = *static_cast<Freer*>(argument);
  check(cuda().cuCtxSetCurrent(freer.context), "cuCtxSetCurrent");
  freer.begins.store(true);
  check(cuda().cuMemFree_v2(freer.memory), "cuMemFree");
  pthread_testcancel();
  return nullptr;
}

// Joins its thread after the library has heard that the program ends: what is destroyed before main() began is destroyed last.
struct LastThread {
  std::atomic<bool> ends{false};
  std::thread thread;
  ~LastThread() {
    ends.store(true);
    if (thread.joinable()) thread.join();
  }
};
LastThread last_thread;

void work(Block& block, Desk& desk, const Options& options) {
  for (uint64_t step = 0; step < options.number("steps", 10); ++step) {
    block.mix(step);
    block.verify_checksum(desk.scratch);
  }
  block.verify_bytes();
}

// Lowers the limit of open files so that so many more can be opened, from the lowest that is free.
void leave_descriptors(rlim_t spare) {
  const int lowest = dup(STDOUT_FILENO);
  close(lowest);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(lowest) + spare;
  if (lowest < 0 || setrlimit(RLIMIT_NOFILE, &limit) != 0) fail(kExitUnexpected, "no limit of open files");
}

// Standard error leads nowhere from now on; `full`: to somebody who reads nothing.
void lose_standard_error(bool full) {
  int ends[2];
  if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0) fail(kExitUnexpected, "no pipe");
  if (!full) {
    close(ends[0]);
    return;
  }
  const char text[4096] = {};
  fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
  while (write(STDERR_FILENO, text, sizeof text) > 0) {
  }
  fcntl(STDERR_FILENO, F_SETFL, 0);
}

}  // namespace

// Passes its memory limit, of which the library tells, where nobody reads that any more, or with --full 1 for now; with --signals 1 while a
// timer's signal comes every 2 ms.
void run_unread(const Options& options) {
  if (options.number("signals", 0) != 0) signal_every(2000);
  retain_primary();
  lose_standard_error(options.number("full", 0) != 0);
  CUdeviceptr address = 0;
  for (int each = 0; each < 3; ++each) {
    const CUresult result = cuda().cuMemAlloc_v2(&address, 128u << 20);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) check(result == CUDA_SUCCESS ? CUDA_ERROR_UNKNOWN : result, "cuMemAlloc past the limit");
  }
  release_primary();
}

// Makes memory where no thread can be started; says what the driver answers.
void run_no_threads(const Options&) {
  pthread_attr_t attributes, before;
  pthread_getattr_default_np(&before);
  pthread_attr_init(&attributes);
  if (pthread_attr_setstacksize(&attributes, size_t{1} << 46) != 0 || pthread_setattr_default_np(&attributes) != 0) {
    fail(kExitUnexpected, "threads can have any stack");
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = cuda().cuMemCreate(&handle, 2u << 20, &properties, 0);
  pthread_setattr_default_np(&before);
  std::printf("the handle: %d\n", static_cast<int>(result));
  std::fflush(stdout);
}

// Works --steps times while a timer's signal comes every 2 ms; it has come before the first context is made.
void run_signals(const Options& options) {
  size_t bytes = 0;
  signal_every(2000);
  check(cuda().cuDeviceTotalMem_v2(&bytes, 0), "cuDeviceTotalMem");
  std::printf("the GPU has %zu MiB\n", bytes >> 20);
  std::fflush(stdout);
  retain_primary();
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 8u << 20), 1);
  work(*block, desk, options);
  release_primary();
}

// A thread allocates --grow bytes, which --hold leaves no room for until others have made some, and is cancelled while it waits.
void run_cancelled(const Options& options) {
  Grower grower;
  grower.context = retain_primary();
  grower.bytes = options.number("grow", 1u << 20);
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 8u << 20), 1);
  stand_still(options);
  pthread_t thread{};
  if (pthread_create(&thread, nullptr, grow_in_a_thread, &grower) != 0) fail(kExitUnexpected, "no thread");
  while (!grower.begins.load()) usleep(1000);
  usleep(300'000);
  say(grower.returned.load() ? "it did not wait" : "cancels");
  pthread_cancel(thread);
  pthread_join(thread, nullptr);
  say(grower.returned.load() ? "its call returned" : "its call did not return");
  work(*block, desk, options);
  release_primary();
}

// A thread is cancelled while its cuMemFree waits for the GPU. Then this one captures: nothing of the other's is in its way.
void run_cancelled_in_a_free(const Options&) {
  Freer freer;
  freer.context = retain_primary();
  Desk desk;
  std::atomic<bool> go{false};
  const auto wait = [](void* data) {
    while (!static_cast<std::atomic<bool>*>(data)->load()) usleep(100);
  };
  check(cuda().cuMemAlloc_v2(&freer.memory, 4u << 20), "cuMemAlloc");
  check(cuda().cuLaunchHostFunc(desk.place.stream, wait, &go), "cuLaunchHostFunc");
  pthread_t thread{};
  if (pthread_create(&thread, nullptr, free_in_a_thread, &freer) != 0) fail(kExitUnexpected, "no thread");
  while (!freer.begins.load()) usleep(1000);
  usleep(200'000);
  pthread_cancel(thread);
  usleep(100'000);
  go.store(true);
  pthread_join(thread, nullptr);
  say("cancelled");
  CUgraph graph = nullptr;
  check(cuda().cuStreamBeginCapture_v2(desk.place.stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  check(cuda().cuStreamEndCapture(desk.place.stream, &graph), "cuStreamEndCapture");
  check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
  release_primary();
}

// A thread keeps the GPU busy; once the program ends it submits two seconds more, which nothing keeps it from having in flight at once.
void run_submits_at_the_end(const Options&) {
  constexpr int kAtTheEnd = 40, kLookedAt = 30;
  constexpr uint64_t kWork_ns = 50'000'000;
  CUcontext context = retain_primary();
  std::atomic<bool> begun{false};
  last_thread.thread = std::thread([context, &begun] {
    check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
    Desk desk;
    const auto submit = [&] { check(launch(desk.place.kernels.spin, desk.place.stream, kWork_ns), "sim_spin"); };
    submit();
    begun.store(true);
    while (!last_thread.ends.load()) submit();
    CUevent looked_at = nullptr;
    check(cuda().cuEventCreate(&looked_at, 0), "cuEventCreate");
    for (int each = 0; each < kAtTheEnd; ++each) {
      submit();
      if (each == kLookedAt) check(cuda().cuEventRecord(looked_at, desk.place.stream), "cuEventRecord");
    }
    const CUresult done = cuda().cuEventQuery(looked_at);
    if (done != CUDA_ERROR_NOT_READY) fail(kExitUnexpected, "it was held after the program's end (%d)", static_cast<int>(done));
    say("it was let go");
  });
  while (!begun.load()) usleep(1000);
}

// Works, closes all descriptors that it does not know, has files of its own under their numbers, works on, and looks at its files.
void run_closes(const Options& options) {
  retain_primary();
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 8u << 20), 1);
  work(*block, desk, options);
  constexpr int kFiles = 32;
  // By the system call itself: to close what a thread of the library's sends through at that moment is the test, which ThreadSanitizer
  // would report.
  for (int fd = STDERR_FILENO + 1; fd < STDERR_FILENO + 1 + kFiles; ++fd) syscall(SYS_close, fd);
  int files[kFiles];
  for (int& file : files) file = memfd_create("mine", 0);
  const auto is_untouched = [](int file) { return lseek(file, 0, SEEK_END) == 0; };
  const auto files_are_mine = [&] { return std::all_of(std::begin(files), std::end(files), is_untouched); };
  if (!files_are_mine()) fail(kExitUnexpected, "new files are not empty");
  for (uint64_t round = 0; round < options.number("rounds", 100); ++round) {
    Block brief(desk.place, 2u << 20, Allocation::kPlain);
    brief.fill(round);
    brief.free();
    block->mix(round);
    block->verify_checksum(desk.scratch);
  }
  if (!files_are_mine()) fail(kExitUnexpected, "somebody has closed one of its files, or written there");
  release_primary();
}

// Says what the driver answers where only --spare descriptors can be opened; then it works, if it may.
void run_few_descriptors(const Options& options) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  leave_descriptors(options.number("spare", 0));
  CUcontext context = nullptr;
  const CUresult result = cuda().cuDevicePrimaryCtxRetain(&context, 0);
  setrlimit(RLIMIT_NOFILE, &before);
  std::printf("the first context: %d\n", static_cast<int>(result));
  std::fflush(stdout);
  if (result != CUDA_SUCCESS) return;
  check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 8u << 20), 1);
  work(*block, desk, options);
  release_primary();
}

}  // namespace nvshare::e2e
