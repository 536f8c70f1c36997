// What libnvshare.so adds to a kernel launch, measured on the stand-in GPU: batches of launches through the hook and straight to the
// driver's own function, alternating in one run, so that what else the machine does meets both. Prints one line of JSON. The bound:
// 20 ns.
//
//   launch_cost_bench [--rounds N] [--batch N]
//
// Starts itself anew with libnvshare.so preloaded and the stand-in driver in front. No scheduler: a program alone takes the same way.
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/symbols/elf_image.h"

extern "C" {
decltype(nvshare::cuda::api::cuInit) cuInit;
decltype(nvshare::cuda::api::cuDevicePrimaryCtxRetain) cuDevicePrimaryCtxRetain;
decltype(nvshare::cuda::api::cuCtxSetCurrent) cuCtxSetCurrent;
decltype(nvshare::cuda::api::cuCtxSynchronize) cuCtxSynchronize;
decltype(nvshare::cuda::api::cuModuleLoadData) cuModuleLoadData;
decltype(nvshare::cuda::api::cuModuleGetFunction) cuModuleGetFunction;
decltype(nvshare::cuda::api::cuStreamCreate) cuStreamCreate;
decltype(nvshare::cuda::api::cuLaunchKernel) cuLaunchKernel;
}

namespace {

using namespace nvshare::cuda;
using Launch = decltype(&api::cuLaunchKernel);

void require(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", what, name_of(result));
  std::exit(EXIT_FAILURE);
}

void start_anew_under_the_library(char** arguments) {
  constexpr char kStarted[] = "LAUNCH_COST_STARTED";
  if (std::getenv(kStarted) != nullptr) return;
  std::string state = "/dev/shm/launch-cost-" + std::to_string(getpid());
  setenv(kStarted, "1", 1);
  setenv("LD_PRELOAD", BENCH_LIBRARY, 1);
  setenv("LD_LIBRARY_PATH", BENCH_STAND_IN, 1);
  setenv("SIMGPU_STATE", state.c_str(), 1);
  setenv("NVSHARE_RUNTIME_DIR", "/nonexistent", 1);
  setenv("NVSHARE_LOG_LEVEL", "error", 1);
  execv("/proc/self/exe", arguments);
  std::perror("execv");
  std::exit(EXIT_FAILURE);
}

// The driver's own function, which dlsym does not give to programs under the library.
Launch drivers_own() {
  for (const link_map* object = nvshare::interposer::first_loaded_object(); object != nullptr; object = object->l_next) {
    if (std::strstr(object->l_name, "libcuda.so") == nullptr) continue;
    void* found = nvshare::interposer::ElfImage(*object).find_function("cuLaunchKernel");
    if (found != nullptr) return reinterpret_cast<Launch>(found);
  }
  std::fprintf(stderr, "libcuda.so is not loaded\n");
  std::exit(EXIT_FAILURE);
}

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

class Bench {
 public:
  Bench() {
    require(cuInit(0), "cuInit");
    CUcontext context = nullptr;
    require(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    require(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    CUmodule module = nullptr;
    require(cuModuleLoadData(&module, "sim"), "cuModuleLoadData");
    require(cuModuleGetFunction(&empty_, module, "sim_noop"), "cuModuleGetFunction");
    require(cuStreamCreate(&stream_, 1), "cuStreamCreate");
  }

  // Nanoseconds of one launch.
  double batch(Launch launch, int count) const {
    const uint64_t start = now_ns();
    for (int i = 0; i < count; ++i) require(launch(empty_, 1, 1, 1, 32, 1, 1, 0, stream_, nullptr, nullptr), "cuLaunchKernel");
    const uint64_t end = now_ns();
    require(cuCtxSynchronize(), "cuCtxSynchronize");
    return static_cast<double>(end - start) / count;
  }

 private:
  CUfunction empty_ = nullptr;
  CUstream stream_ = nullptr;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

int number(int argc, char** argv, const char* name, int otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return std::max(1, std::atoi(argv[i + 1]));
  }
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  start_anew_under_the_library(argv);
  const int rounds = number(argc, argv, "--rounds", 500);
  const int batch = number(argc, argv, "--batch", 2000);
  const Launch hook = &cuLaunchKernel;
  const Launch own = drivers_own();
  if (hook == own) {
    std::fprintf(stderr, "cuLaunchKernel is not hooked\n");
    return EXIT_FAILURE;
  }
  Bench bench;
  bench.batch(hook, batch);
  bench.batch(own, batch);
  std::vector<double> hooked;
  std::vector<double> straight;
  std::vector<double> difference;
  for (int i = 0; i < rounds; ++i) {
    // Which goes first changes, so that neither profits from what the other left in the caches.
    const bool hook_first = i % 2 == 0;
    const double first = bench.batch(hook_first ? hook : own, batch);
    const double second = bench.batch(hook_first ? own : hook, batch);
    hooked.push_back(hook_first ? first : second);
    straight.push_back(hook_first ? second : first);
    difference.push_back(hooked.back() - straight.back());
  }
  std::printf(
      "{\"benchmark\": \"launch_cost\", \"hooked_ns\": %.1f, \"unhooked_ns\": %.1f, \"added_ns\": %.1f, \"bound_ns\": 20, \"rounds\": %d, "
      "\"batch\": %d}\n",
      median(hooked), median(straight), median(difference), rounds, batch);
  unlink(std::getenv("SIMGPU_STATE"));
  return EXIT_SUCCESS;
}
