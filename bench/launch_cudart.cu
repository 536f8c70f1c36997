// The same through a statically linked CUDA runtime, as most programs are built: nvcc -O2 -cudart static -o launch_cudart launch_cudart.cu
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "launch_costs.h"

__global__ void empty() {}

namespace {

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::printf("{\"error\": \"%s: %s\"}\n", what, cudaGetErrorString(error));
    std::fflush(stdout);
    std::exit(3);
  }
}

struct RuntimeGpu {
  static constexpr bool kHasStraight = false;
  void launch() { empty<<<1, 32>>>(); }
  void synchronize() {
    require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    require(cudaGetLastError(), "launch");
  }
  void* allocate(size_t bytes) {
    void* pointer = nullptr;
    require(cudaMalloc(&pointer, bytes), "cudaMalloc");
    return pointer;
  }
  void release(void* pointer) { require(cudaFree(pointer), "cudaFree"); }
};

}  // namespace

int main() {
  RuntimeGpu gpu;
  return bench::serve(gpu);
}
