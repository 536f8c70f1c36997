// Work in bursts, submitted in every way that puts work on the GPU: for what is told apart by when a program's work ends and how much of
// it is under way, not by its bytes.
#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "e2e/worker/desk.h"
#include "e2e/worker/modes.h"
#include "simgpu/control.h"

namespace nvshare::e2e {
namespace {

constexpr size_t kCopyBytes = 4u << 20;

struct Submitter {
  Desk desk;
  uint64_t duration_ns;
  CUgraphExec graph = nullptr;
  CUdeviceptr source = 0, target = 0;

  explicit Submitter(uint64_t duration) : duration_ns(duration) {
    check(cuda().cuStreamBeginCapture_v2(desk.place.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    check(launch(desk.place.kernels.spin, desk.place.stream, duration_ns), "sim_spin");
    CUgraph captured = nullptr;
    check(cuda().cuStreamEndCapture(desk.place.stream, &captured), "cuStreamEndCapture");
    check(cuda().cuGraphInstantiateWithFlags(&graph, captured, 0), "cuGraphInstantiate");
    check(cuda().cuGraphDestroy(captured), "cuGraphDestroy");
    check(cuda().cuMemAlloc_v2(&source, kCopyBytes), "cuMemAlloc");
    check(cuda().cuMemAlloc_v2(&target, kCopyBytes), "cuMemAlloc");
  }

  // Work of about that duration, in that way.
  void submit(const std::string& way) {
    CUstream stream = desk.place.stream;
    CUfunction spin = desk.place.kernels.spin;
    uint64_t duration = duration_ns;
    void* parameters[] = {&duration, nullptr};
    if (way == "plain") {
      check(launch(spin, stream, duration), "cuLaunchKernel");
    } else if (way == "ex") {
      CUlaunchConfig config{};
      config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
      config.hStream = stream;
      check(cuda().cuLaunchKernelEx(&config, spin, parameters, nullptr), "cuLaunchKernelEx");
    } else if (way == "cooperative") {
      check(cuda().cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters), "cuLaunchCooperativeKernel");
    } else if (way == "graph") {
      check(cuda().cuGraphLaunch(graph, stream), "cuGraphLaunch");
    } else if (way == "copy") {  // behind a kernel: alone it is over too soon to tell
      check(launch(spin, stream, duration), "cuLaunchKernel");
      check(cuda().cuMemcpyDtoDAsync_v2(target, source, kCopyBytes, stream), "cuMemcpyDtoDAsync");
    } else {
      fail(kExitUsage, "there is no way '%s'", way.c_str());
    }
  }
};

constexpr const char* kWays[] = {"plain", "ex", "cooperative", "graph", "copy"};

}  // namespace

// --rounds bursts in each way: --units pieces of work of --work microseconds each, submitted at once and waited for, then --pause
// microseconds of nothing.
void run_bursts(const Options& options) {
  retain_primary();
  Submitter submitter(options.number("work", 5000) * 1000);
  const std::chrono::microseconds pause(options.number("pause", 0));
  for (const char* way : kWays) {
    for (uint64_t round = 0; round < options.number("rounds", 5); ++round) {
      for (uint64_t unit = 0; unit < options.number("units", 1); ++unit) submitter.submit(way);
      check(cuda().cuStreamSynchronize(submitter.desk.place.stream), "cuStreamSynchronize");
      if (pause.count() > 0) std::this_thread::sleep_for(pause);
    }
  }
}

// Never idle until told to stop: units of --work microseconds, in each way in turn. Every ten of them, how many it were. --hold: so much
// memory besides, which is right at the end.
void run_steady(const Options& options) {
  retain_primary();
  Submitter submitter(options.number("work", 1000) * 1000);
  const uint64_t held = options.number("hold", 0);
  auto ballast = held > 0 ? filled(submitter.desk.place, held, 1) : nullptr;
  for (uint64_t units = 0; !options.told_to_stop();) {
    for (int unit = 0; unit < 10; ++unit) submitter.submit(kWays[units++ % std::size(kWays)]);
    check(cuda().cuStreamSynchronize(submitter.desk.place.stream), "cuStreamSynchronize");
    say(("units " + std::to_string(units)).c_str());
  }
  if (ballast) ballast->verify_bytes();
}

// One thread that submits pieces of --work microseconds to two contexts in turn, and waits for none of them.
void run_two_contexts(const Options& options) {
  const uint64_t duration_ns = options.number("work", 1000) * 1000;
  struct Side {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    CUfunction spin = nullptr;
  };
  Side sides[2];
  CUdeviceptr memory = 0;  // so that each turn begins with something to load
  for (Side& side : sides) {
    check(cuda().cuCtxCreate_v2(&side.context, 0, 0), "cuCtxCreate");
    side.spin = load_kernels().spin;
    check(cuda().cuStreamCreate(&side.stream, kNonBlocking), "cuStreamCreate");
    if (memory == 0) check(cuda().cuMemAlloc_v2(&memory, kCopyBytes), "cuMemAlloc");
  }
  const auto ends = std::chrono::steady_clock::now() + std::chrono::milliseconds(options.number("for-ms", 2000));
  while (std::chrono::steady_clock::now() < ends) {
    for (const Side& side : sides) {
      check(cuda().cuCtxSetCurrent(side.context), "cuCtxSetCurrent");
      check(launch(side.spin, side.stream, duration_ns), "sim_spin");
    }
  }
  for (const Side& side : sides) {
    check(cuda().cuCtxSetCurrent(side.context), "cuCtxSetCurrent");
    check(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  }
  uint64_t events = 0;
  simgpu_control("events", &events);
  std::printf("events left: %llu\n", static_cast<unsigned long long>(events));
}

// --threads threads that submit pieces of --work microseconds on streams of their own and wait for none of them, for --for-ms milliseconds.
void run_eager_threads(const Options& options) {
  const CUcontext context = retain_primary();
  const CUfunction spin = load_kernels().spin;
  CUdeviceptr memory = 0;  // so that each turn begins with something to load
  check(cuda().cuMemAlloc_v2(&memory, kCopyBytes), "cuMemAlloc");
  const auto ends = std::chrono::steady_clock::now() + std::chrono::milliseconds(options.number("for-ms", 2000));
  const uint64_t duration_ns = options.number("work", 1000) * 1000;
  std::vector<std::thread> crowd;
  for (uint64_t i = 0; i < options.number("threads", 8); ++i) {
    crowd.emplace_back([=] {
      check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
      CUstream stream = nullptr;
      check(cuda().cuStreamCreate(&stream, kNonBlocking), "cuStreamCreate");
      while (std::chrono::steady_clock::now() < ends) check(launch(spin, stream, duration_ns), "sim_spin");
    });
  }
  for (std::thread& thread : crowd) thread.join();
  check(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
}

}  // namespace nvshare::e2e
