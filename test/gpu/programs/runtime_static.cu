// A program of the statically linked CUDA runtime, as nvcc links by default: launches by <<<>>>, symbols on the GPU, copies of every kind,
// events, blocks freed and allocated anew in mid-run.
#include "work.cuh"

__device__ uint64_t on_gpu[1 << 16];
__constant__ uint64_t salt;

__global__ void fold(uint64_t* data, uint64_t words) {
  const uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x;
  if (i < words && i < (1u << 16)) {
    on_gpu[i] = work::scramble(on_gpu[i] + data[i] + salt);
    data[i] ^= on_gpu[i];
  }
}

struct Static : work::Work {
  std::vector<uint64_t> host = std::vector<uint64_t>(1 << 16);
  cudaEvent_t before = nullptr, after = nullptr;

  void start() override {
    Work::start();
    REQUIRE(cudaEventCreate(&before));
    REQUIRE(cudaEventCreate(&after));
    REQUIRE(cudaMemcpyToSymbol(salt, &seed, 8));
  }

  void unit(uint64_t i) override {
    REQUIRE(cudaEventRecord(before));
    mix_all(i);
    work::Block& first = blocks[i % blocks.size()];
    fold<<<256, 256>>>(first.data, first.words);
    REQUIRE(cudaMemcpyFromSymbol(host.data(), on_gpu, host.size() * 8));  // pageable
    host[i % host.size()] += i;
    REQUIRE(cudaMemcpyToSymbol(on_gpu, host.data(), host.size() * 8));
    if (i % 8 == 7) {
      work::Block& other = blocks[(i / 8) % blocks.size()];
      uint64_t* moved = nullptr;
      REQUIRE(cudaMalloc(&moved, other.words * 8 > (64u << 20) ? 64u << 20 : other.words * 8));
      REQUIRE(cudaMemcpy(moved, other.data, 4096, cudaMemcpyDeviceToDevice));
      REQUIRE(cudaMemcpy(other.data + 512, moved, 4096, cudaMemcpyDeviceToDevice));
      REQUIRE(cudaFree(moved));
    }
    REQUIRE(cudaEventRecord(after));
    REQUIRE(cudaEventSynchronize(after));
    float elapsed_ms = -1;
    REQUIRE(cudaEventElapsedTime(&elapsed_ms, before, after));
    if (!(elapsed_ms >= 0)) {
      std::fprintf(stderr, "an event ended before it began: %f ms\n", elapsed_ms);
      std::_Exit(4);
    }
  }

  uint64_t checksum() override {
    REQUIRE(cudaMemcpyFromSymbol(host.data(), on_gpu, host.size() * 8));
    uint64_t total = sum_of_blocks();
    for (const uint64_t word : host) {
      total = total * 31 + word;
    }
    return total;
  }
};

int main(int argc, char** argv) {
  Static program;
  return work::run(program, argc, argv);
}
