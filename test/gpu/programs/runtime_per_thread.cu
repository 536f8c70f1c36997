// nvcc --default-stream per-thread: threads that each use their own default stream, copies and all, so through the driver's _ptsz entry
// points.
#include <thread>

#include "work.cuh"

constexpr size_t kThreads = 4;

struct PerThread : work::Work {
  // Of each thread, in pinned memory: what comes back from the GPU decides what goes out next.
  uint64_t* host = nullptr;

  void start() override {
    Work::start();
    REQUIRE(cudaMallocHost(&host, kThreads * 8));
    std::memset(host, 0, kThreads * 8);
  }

  void unit(uint64_t i) override {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([this, i, t] {
        for (size_t k = t; k < blocks.size(); k += kThreads) {
          work::Block& block = blocks[k];
          work::mix<<<work::grid_for(block.words), 256>>>(block.data, block.words, i * 64 + k + host[t]);
          REQUIRE(cudaMemcpyAsync(&host[t], block.data + (i * 977) % block.words, 8, cudaMemcpyDeviceToHost, nullptr));
          REQUIRE(cudaStreamSynchronize(nullptr));
          REQUIRE(cudaMemsetAsync(block.data + (i * 31) % block.words, static_cast<int>(host[t] & 255), 8, nullptr));
        }
        REQUIRE(cudaGetLastError());
        REQUIRE(cudaStreamSynchronize(nullptr));
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
};

int main(int argc, char** argv) {
  PerThread program;
  return work::run(program, argc, argv);
}
