// What a launch and an allocation cost through the driver API. Orders: launch_costs.h.
#include "drivers_own.h"
#include "gpu/program.h"
#include "launch_costs.h"

namespace {

struct DriverGpu {
  static constexpr bool kHasStraight = true;
  gputest::CUfunction empty = nullptr;
  gputest::CUstream stream = nullptr;
  // cuLaunchKernel as the driver exports it. Beside the gate, so only for a program that nobody shares the GPU with.
  decltype(gputest::Driver::launch_kernel) straight = nullptr;

  bool hooked() const { return straight != gputest::driver().launch_kernel; }
  void launch_straight() { gputest::require(straight(empty, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel"); }
  void launch() {
    gputest::require(gputest::driver().launch_kernel(empty, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
  }
  void synchronize() { gputest::require(gputest::driver().stream_synchronize(stream), "cuStreamSynchronize"); }
  gputest::CUdeviceptr allocate(size_t bytes) {
    gputest::CUdeviceptr pointer = 0;
    gputest::require(gputest::driver().mem_alloc(&pointer, bytes), "cuMemAlloc");
    return pointer;
  }
  void release(gputest::CUdeviceptr pointer) { gputest::require(gputest::driver().mem_free(pointer), "cuMemFree"); }
};

}  // namespace

int main() {
  gputest::open_gpu();
  DriverGpu gpu;
  gpu.empty = gputest::kernel("sim_noop");
  gpu.straight = reinterpret_cast<decltype(gpu.straight)>(bench::drivers_own("libcuda.so", "cuLaunchKernel"));
  if (gpu.straight == nullptr) {
    std::printf("{\"error\": \"libcuda.so does not export cuLaunchKernel\"}\n");
    return 3;
  }
  gputest::require(gputest::driver().stream_create(&gpu.stream, gputest::kStreamNonBlocking), "cuStreamCreate");
  return bench::serve(gpu);
}
