// Programs that do what the library once did wrong, each after the bug that it is for (test/regressions).
#include <dirent.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"
#include "simgpu/control.h"

namespace nvshare::e2e {
namespace {

CUgraphExec executable_copy(const Desk& desk, const Block& to, const Block& from) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  check(cuda().cuStreamBeginCapture_v2(desk.place.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  check(cuda().cuMemcpyDtoDAsync_v2(to.address(), from.address(), from.bytes(), desk.place.stream), "cuMemcpyDtoDAsync");
  check(cuda().cuStreamEndCapture(desk.place.stream, &graph), "cuStreamEndCapture");
  check(cuda().cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
  check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
  return executable;
}

// Whether a child that gives a graph back as its last handlers do ends within two seconds.
bool child_ends(CUgraphExec executable) {
  const pid_t child = fork();
  if (child == 0) {
    static_cast<void>(cuda().cuGraphExecDestroy(executable));  // there is no driver in it
    _exit(0);
  }
  if (child < 0) fail(kExitUnexpected, "no child");
  for (int looks = 0; looks < 2000; ++looks) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return true;
    usleep(1000);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return false;
}

// The GPU stands still on that stream until `*go`, which outlives the stream: it looks once more.
void stand_still_on(CUstream stream, std::atomic<bool>* go) {
  const auto wait = [](void* data) {
    while (!static_cast<std::atomic<bool>*>(data)->load()) usleep(100);
  };
  check(cuda().cuLaunchHostFunc(stream, wait, go), "cuLaunchHostFunc");
}

void free_beside_a_capture(CUstream stream, CUdeviceptr memory) {
  CUgraph graph = nullptr;
  check(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  check(cuda().cuMemFree_v2(memory), "cuMemFree");
  check(cuda().cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
}

// This process has a thread of that name.
bool has_thread(const char* name) {
  bool found = false;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* task = tasks != nullptr ? readdir(tasks) : nullptr) {
    char line[32] = {};
    FILE* file = std::fopen((std::string("/proc/self/task/") + task->d_name + "/comm").c_str(), "r");
    if (file == nullptr) continue;
    found = found || (std::fgets(line, sizeof line, file) != nullptr && std::string(line) == std::string(name) + "\n");
    std::fclose(file);
  }
  if (tasks != nullptr) closedir(tasks);
  return found;
}

void break_primary(const Kernels& kernels) {
  retain_primary();
  check(launch(kernels.fill, nullptr, uint64_t{4096}, uint64_t{1}, uint64_t{1}), "sim_fill");
  if (cuda().cuCtxSynchronize() != CUDA_ERROR_ILLEGAL_ADDRESS) fail(kExitUnexpected, "the context was to fail");
}

}  // namespace

// Forks --steps children, which destroy a graph, while other threads make and destroy some of many.
void run_fork_beside_graphs(const Options& options) {
  constexpr int kThreads = 3;
  CUcontext context = retain_primary();
  Desk desk;
  auto from = filled(desk.place, 4096, 1);
  auto to = filled(desk.place, 4096, 2);
  CUgraphExec known = executable_copy(desk, *to, *from);
  std::atomic<bool> over{false};
  std::atomic<int> ready{0};
  std::vector<std::thread> beside;
  for (int each = 0; each < kThreads; ++each) {
    beside.emplace_back([&] {
      check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
      Desk own;
      std::vector<CUgraphExec> executables;
      for (uint64_t i = 0; i < options.number("graphs", 12000); ++i) executables.push_back(executable_copy(own, *to, *from));
      ++ready;
      for (size_t next = 0; !over.load(); next = (next + 1) % executables.size()) {
        check(cuda().cuGraphExecDestroy(executables[next]), "cuGraphExecDestroy");
        executables[next] = executable_copy(own, *to, *from);
      }
    });
  }
  while (ready.load() < kThreads) usleep(1000);
  uint64_t stuck = 0;
  for (uint64_t round = 0; round < options.number("steps", 100) && stuck == 0; ++round) stuck += child_ends(known) ? 0 : 1;
  over.store(true);
  for (std::thread& thread : beside) thread.join();
  if (stuck != 0) fail(kExitUnexpected, "a forked child hangs");
  release_primary();
}

// Frees --count blocks on each of several streams that stand still until this thread has done so: no more than a stream takes without
// waiting.
void run_free_while_the_gpu_waits(const Options& options) {
  constexpr size_t kStreams = 8;
  retain_primary();
  std::vector<CUstream> streams(kStreams);
  std::vector<CUdeviceptr> blocks(kStreams * options.number("count", 800));
  static std::atomic<bool> go{false};
  for (CUstream& stream : streams) check(cuda().cuStreamCreate(&stream, kNonBlocking), "cuStreamCreate");
  for (size_t i = 0; i < blocks.size(); ++i) {
    check(cuda().cuMemAllocAsync(&blocks[i], 4096, streams[i % kStreams]), "cuMemAllocAsync");
  }
  for (CUstream stream : streams) stand_still_on(stream, &go);
  for (size_t i = 0; i < blocks.size(); ++i) check(cuda().cuMemFreeAsync(blocks[i], streams[i % kStreams]), "cuMemFreeAsync");
  go.store(true);
  for (CUstream stream : streams) check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
  for (CUstream stream : streams) check(cuda().cuStreamDestroy_v2(stream), "cuStreamDestroy");
  release_primary();
}

// Frees on a stream that stands still until this thread has allocated again, or was refused that; with --beside-capture 1 beside a capture,
// which is over when the stream stands still.
void run_allocate_while_the_gpu_waits(const Options& options) {
  const size_t bytes = options.number("hold", 60u << 20);
  retain_primary();
  Desk desk;
  auto ballast = filled(desk.place, 2 * bytes, 1);
  CUdeviceptr freed = 0, more = 0;
  static std::atomic<bool> go{false};
  if (options.number("beside-capture", 0) != 0) {
    check(cuda().cuMemAlloc_v2(&freed, bytes), "cuMemAlloc");
    free_beside_a_capture(desk.place.stream, freed);
    stand_still_on(desk.place.stream, &go);
  } else {
    check(cuda().cuMemAllocAsync(&freed, bytes, desk.place.stream), "cuMemAllocAsync");
    stand_still_on(desk.place.stream, &go);
    check(cuda().cuMemFreeAsync(freed, desk.place.stream), "cuMemFreeAsync");
  }
  const CUresult early = cuda().cuMemAlloc_v2(&more, bytes);
  say(early == CUDA_SUCCESS ? "allocated beside it" : "refused");
  go.store(true);
  if (early != CUDA_ERROR_OUT_OF_MEMORY) check(early, "cuMemAlloc");
  if (early != CUDA_SUCCESS) check(cuda().cuMemAlloc_v2(&more, bytes), "cuMemAlloc");
  ballast->verify_bytes();
  release_primary();
}

// No thread can be started any more.
void allow_no_threads() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (pthread_attr_setstacksize(&attributes, size_t{1} << 46) != 0 || pthread_setattr_default_np(&attributes) != 0) {
    fail(kExitUnexpected, "threads can have any stack");
  }
}

// While an allocation waits for the GPU's work, and that for this thread, another context is destroyed, which has none. --threads 0: no
// thread of the library's can be started that waits instead.
void run_destroy_while_the_gpu_waits(const Options& options) {
  const size_t bytes = options.number("hold", 60u << 20);
  CUcontext own = retain_primary();
  CUcontext other = nullptr;
  check(cuda().cuCtxCreate_v2(&other, 0, 0), "cuCtxCreate");
  check(cuda().cuCtxSetCurrent(own), "cuCtxSetCurrent");
  Desk desk;
  auto ballast = filled(desk.place, 2 * bytes, 1);
  CUdeviceptr freed = 0;
  static std::atomic<bool> go{false}, begins{false};
  check(cuda().cuMemAlloc_v2(&freed, bytes), "cuMemAlloc");
  free_beside_a_capture(desk.place.stream, freed);
  stand_still_on(desk.place.stream, &go);
  std::thread allocates([&] {
    CUdeviceptr more = 0;
    check(cuda().cuCtxSetCurrent(own), "cuCtxSetCurrent");
    while (!begins.load()) usleep(1000);
    check(cuda().cuMemAlloc_v2(&more, bytes), "cuMemAlloc");
  });
  const bool threads = options.number("threads", 1) != 0;
  if (!threads) allow_no_threads();
  begins.store(true);
  while (threads && !has_thread("nvshare-settle")) usleep(1000);
  usleep(threads ? 50'000 : 300'000);
  check(cuda().cuCtxDestroy_v2(other), "cuCtxDestroy");
  say("destroyed");
  go.store(true);
  allocates.join();
  ballast->verify_bytes();
  release_primary();
}

// Allocates --count times beside a capture while the GPU's work waits for this thread.
void run_allocate_beside_a_capture(const Options& options) {
  retain_primary();
  Desk desk, still;
  CUgraph graph = nullptr;
  std::vector<CUdeviceptr> more(options.number("count", 2));
  static std::atomic<bool> go{false};
  check(cuda().cuStreamBeginCapture_v2(desk.place.stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  stand_still_on(still.place.stream, &go);
  for (CUdeviceptr& each : more) check(cuda().cuMemAlloc_v2(&each, 4096), "cuMemAlloc");
  say("allocated beside it");
  go.store(true);
  check(cuda().cuStreamEndCapture(desk.place.stream, &graph), "cuStreamEndCapture");
  check(cuda().cuGraphDestroy(graph), "cuGraphDestroy");
  for (CUdeviceptr each : more) check(cuda().cuMemFree_v2(each), "cuMemFree");
  release_primary();
}

// Frees beside a capture what the GPU may still use, and allocates --count times on other streams than the one that stands still until this
// thread has done so.
void run_frees_of_captures(const Options& options) {
  retain_primary();
  Desk desk, still;
  CUdeviceptr freed = 0, more = 0;
  static std::atomic<bool> go{false};
  check(cuda().cuMemAlloc_v2(&freed, 4u << 20), "cuMemAlloc");
  free_beside_a_capture(desk.place.stream, freed);
  stand_still_on(still.place.stream, &go);
  for (uint64_t each = 0; each < options.number("count", 4); ++each) {
    check(cuda().cuMemAllocAsync(&more, 64 << 10, desk.place.stream), "cuMemAllocAsync");
    check(cuda().cuMemFreeAsync(more, desk.place.stream), "cuMemFreeAsync");
  }
  say("allocated beside it");
  go.store(true);
  check(cuda().cuStreamSynchronize(still.place.stream), "cuStreamSynchronize");
  check(cuda().cuMemAlloc_v2(&more, 64 << 10), "cuMemAlloc");
  check(cuda().cuMemFree_v2(more), "cuMemFree");
  release_primary();
}

// Makes and ends a green context while a stream of the primary one, with a free behind it, stands still until this thread has done so.
void run_green_while_the_gpu_waits(const Options&) {
  retain_primary();
  Desk desk;
  CUdeviceptr freed = 0;
  static std::atomic<bool> go{false};
  check(cuda().cuMemAllocAsync(&freed, 4u << 20, desk.place.stream), "cuMemAllocAsync");
  stand_still_on(desk.place.stream, &go);
  check(cuda().cuMemFreeAsync(freed, desk.place.stream), "cuMemFreeAsync");
  CUgreenCtx green = nullptr;
  check(cuda().cuGreenCtxCreate(&green, nullptr, 0, 1), "cuGreenCtxCreate");
  check(cuda().cuGreenCtxDestroy(green), "cuGreenCtxDestroy");
  say("ended beside it");
  go.store(true);
  check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
  release_primary();
}

// Asks for more than any GPU has, also by sizes whose product is small again in 64 bits, and for what is in use of the pool afterwards.
void run_absurd_sizes(const Options&) {
  retain_primary();
  CUdeviceptr address = 0, held = 0;
  size_t pitch = 0;
  for (const size_t height : {(size_t{1} << 55) + 1, (size_t{1} << 62) + 1, SIZE_MAX}) {
    const CUresult result = cuda().cuMemAllocPitch_v2(&address, &pitch, 1, height, 4);
    if (result == CUDA_SUCCESS) fail(kExitUnexpected, "%zu rows were allocated", height);
  }
  check(cuda().cuMemAllocAsync(&held, 1 << 20, nullptr), "cuMemAllocAsync");
  check(cuda().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  CUmemoryPool pool = nullptr;
  check(cuda().cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
  for (const size_t bytes : {size_t{1} << 40, SIZE_MAX / 2, SIZE_MAX - 511, SIZE_MAX}) {
    const CUresult result = cuda().cuMemAllocAsync(&address, bytes, nullptr);
    if (result == CUDA_SUCCESS) fail(kExitUnexpected, "%zu bytes were allocated", bytes);
  }
  for (const CUmemPool_attribute each : {CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH}) {
    cuuint64_t used = 0;
    check(cuda().cuMemPoolGetAttribute(pool, each, &used), "cuMemPoolGetAttribute");
    if (used != 1 << 20)
      fail(kExitUnexpected, "attribute %d of the pool is %llu", static_cast<int>(each), static_cast<unsigned long long>(used));
  }
  check(cuda().cuMemFreeAsync(held, nullptr), "cuMemFreeAsync");
  check(cuda().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  release_primary();
}

// A host function tries to free what the program works on, which no driver permits.
void run_free_in_a_callback(const Options&) {
  retain_primary();
  Desk desk;
  struct Attempt {
    CUdeviceptr address;
    CUresult result;
  };
  auto block = filled(desk.place, 1 << 20, 1);
  Attempt attempt{block->address(), CUDA_SUCCESS};
  const auto free_it = [](void* data) {
    auto* one = static_cast<Attempt*>(data);
    one->result = cuda().cuMemFree_v2(one->address);
  };
  check(cuda().cuLaunchHostFunc(desk.place.stream, free_it, &attempt), "cuLaunchHostFunc");
  check(cuda().cuStreamSynchronize(desk.place.stream), "cuStreamSynchronize");
  if (attempt.result != CUDA_ERROR_NOT_PERMITTED) fail(kExitUnexpected, "the free: %d", static_cast<int>(attempt.result));
  block->mix(1);
  block->verify_bytes();
  block->free();
  release_primary();
}

// The first context fails for good, by its own kernel or with --by load by nothing of the program's; what the second one holds stays right,
// turn by turn.
void run_failing_context(const Options& options) {
  retain_primary();
  const Kernels kernels = load_kernels();
  CUcontext second = nullptr;
  check(cuda().cuCtxCreate_v2(&second, 0, 0), "cuCtxCreate");
  Desk desk;
  auto block = filled(desk.place, options.number("hold", 64u << 20), 1);
  block->verify_checksum(desk.scratch);
  if (options.text("by", "kernel") == "kernel") break_primary(kernels);
  say("one failed");
  check(cuda().cuCtxSetCurrent(second), "cuCtxSetCurrent");
  for (uint64_t round = 0; !options.told_to_stop(); ++round) {
    block->mix_slowly(round, 2'000'000);
    block->verify_checksum(desk.scratch);
  }
  block->verify_bytes();
}

// Attributes of a range, one by one and together, are for managed memory: a driver refuses them of plain memory.
void run_range_attributes(const Options&) {
  retain_primary();
  CUdeviceptr plain = 0, managed = 0;
  check(cuda().cuMemAlloc_v2(&plain, 8 << 20), "cuMemAlloc");
  check(cuda().cuMemAllocManaged(&managed, 8 << 20, 1), "cuMemAllocManaged");
  const auto ask = [](CUdeviceptr address, bool together) {
    int value = 0;
    void* data = &value;
    size_t bytes = sizeof value;
    auto attribute = static_cast<CUmem_range_attribute>(1);
    return together ? cuda().cuMemRangeGetAttributes(&data, &bytes, &attribute, 1, address, 4096)
                    : cuda().cuMemRangeGetAttribute(data, bytes, attribute, address, 4096);
  };
  for (const bool together : {false, true}) {
    check(ask(managed, together), "a range's attribute");
    const CUresult refused = ask(plain, together);
    if (refused != CUDA_ERROR_INVALID_VALUE) fail(kExitUnexpected, "%s: %d", together ? "together" : "one", static_cast<int>(refused));
  }
  release_primary();
}

// Each of --steps contexts has an array that the driver refuses to destroy; it goes with its context.
void run_arrays_that_stay(const Options& options) {
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = 2048;
  shape.Height = 1024;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  for (uint64_t round = 0; round < options.number("steps", 1); ++round) {
    CUcontext context = nullptr;
    CUarray array = nullptr;
    check(cuda().cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
    check(cuda().cuArrayCreate_v2(&array, &shape), "cuArrayCreate");
    simgpu_control("set_faults device_lost", nullptr);
    const CUresult refused = cuda().cuArrayDestroy(array);
    simgpu_control("set_faults ", nullptr);
    if (refused == CUDA_SUCCESS) fail(kExitUnexpected, "the driver was to refuse it");
    check(cuda().cuCtxDestroy_v2(context), "cuCtxDestroy");
  }
}

}  // namespace nvshare::e2e
