// What a launch and an allocation cost through the driver API. Orders: launch_costs.h.
#include "gpu/program.h"
#include "launch_costs.h"

namespace {

struct DriverGpu {
  gputest::CUfunction empty = nullptr;
  gputest::CUstream stream = nullptr;

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
  gputest::require(gputest::driver().stream_create(&gpu.stream, gputest::kStreamNonBlocking), "cuStreamCreate");
  return bench::serve(gpu);
}
