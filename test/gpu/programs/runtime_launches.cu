// The other ways to launch: cooperative kernels that synchronise their grid, captured graphs, graphs built by hand with copies, host
// functions, updated parameters, and memory nodes whose memory lives in the graph alone; host functions in streams.
#include <cooperative_groups.h>

#include <atomic>

#include "work.cuh"

// Every block needs every other one's word, twice.
__global__ void together(uint64_t* data, uint64_t words, uint64_t* exchange, uint64_t round) {
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  for (uint64_t step = 0; step < 2; ++step) {
    if (threadIdx.x == 0) {
      exchange[blockIdx.x] = work::scramble(data[(blockIdx.x * 4099 + round + step) % words] + blockIdx.x);
    }
    grid.sync();
    uint64_t sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) {
      sum += exchange[b] * (2 * b + 1);
    }
    for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < words; i += uint64_t{gridDim.x} * blockDim.x) {
      data[i] = work::scramble(data[i] + sum);
    }
    grid.sync();
  }
}

struct Launches : work::Work {
  cudaStream_t stream = nullptr;
  uint64_t* exchange = nullptr;
  uint64_t* host = nullptr;
  unsigned cooperative_blocks = 0;
  cudaGraphExec_t captured = nullptr, built = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t mixing = nullptr;
  std::atomic<uint64_t> heard{0};

  static void hear(void* data) {
    auto* self = static_cast<Launches*>(data);
    self->heard = self->heard * 31 + *self->host;
  }

  void start() override {
    int device = 0, can = 0, processors = 0, per_processor = 0;
    REQUIRE(cudaGetDevice(&device));
    REQUIRE(cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, device));
    if (can == 0) {
      work::skip("this GPU has no cooperative launches");
    }
    Work::start();
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    REQUIRE(cudaMallocHost(&host, 64));
    *host = 0;
    REQUIRE(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    REQUIRE(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, together, 256, 0));
    cooperative_blocks = static_cast<unsigned>(processors * (per_processor < 2 ? per_processor : 2));
    REQUIRE(cudaMalloc(&exchange, cooperative_blocks * 8));
    capture();
    build();
  }

  // A stream's work with memory that is allocated and freed within it.
  void capture() {
    cudaGraph_t taken = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    uint64_t* scratch = nullptr;
    const uint64_t words = 4u << 20;
    REQUIRE(cudaMallocAsync(&scratch, words * 8, stream));
    REQUIRE(cudaMemcpyAsync(scratch, blocks[0].data, blocks[0].words < words ? blocks[0].words * 8 : words * 8, cudaMemcpyDeviceToDevice,
                            stream));
    work::mix<<<256, 256, 0, stream>>>(scratch, blocks[0].words < words ? blocks[0].words : words, 11);
    REQUIRE(cudaMemcpyAsync(blocks[0].data, scratch, blocks[0].words < words ? blocks[0].words * 8 : words * 8, cudaMemcpyDeviceToDevice,
                            stream));
    REQUIRE(cudaFreeAsync(scratch, stream));
    REQUIRE(cudaStreamEndCapture(stream, &taken));
    REQUIRE(cudaGraphInstantiate(&captured, taken, 0));
    REQUIRE(cudaGraphDestroy(taken));
  }

  // Node by node: a kernel, a copy to the host, a host function.
  void build() {
    REQUIRE(cudaGraphCreate(&graph, 0));
    uint64_t round = 0;
    cudaKernelNodeParams kernel = mixing_of(&round);
    REQUIRE(cudaGraphAddKernelNode(&mixing, graph, nullptr, 0, &kernel));
    cudaGraphNode_t copy = nullptr, call = nullptr;
    REQUIRE(cudaGraphAddMemcpyNode1D(&copy, graph, &mixing, 1, host, blocks[1].data, 8, cudaMemcpyDeviceToHost));
    cudaHostNodeParams function{hear, this};
    REQUIRE(cudaGraphAddHostNode(&call, graph, &copy, 1, &function));
    REQUIRE(cudaGraphInstantiate(&built, graph, 0));
  }

  // The parameters' addresses must live as long as the call that takes them.
  cudaKernelNodeParams mixing_of(uint64_t* round) {
    static void* arguments[3];
    arguments[0] = &blocks[1].data;
    arguments[1] = &blocks[1].words;
    arguments[2] = round;
    cudaKernelNodeParams kernel{};
    kernel.func = reinterpret_cast<void*>(work::mix);
    kernel.gridDim = dim3(work::grid_for(blocks[1].words));
    kernel.blockDim = dim3(256);
    kernel.kernelParams = arguments;
    return kernel;
  }

  void unit(uint64_t i) override {
    mix_all(i, stream);
    for (uint64_t k = 0; k < 3; ++k) {
      work::Block& block = blocks[(i + k) % blocks.size()];
      uint64_t words = block.words < (1u << 20) ? block.words : 1u << 20;
      uint64_t round = i * 3 + k;
      void* arguments[] = {&block.data, &words, &exchange, &round};
      REQUIRE(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(together), dim3(cooperative_blocks), dim3(256), arguments, 0, stream));
    }
    REQUIRE(cudaGraphLaunch(captured, stream));
    uint64_t round = i * 1000003;
    cudaKernelNodeParams kernel = mixing_of(&round);
    REQUIRE(cudaGraphExecKernelNodeSetParams(built, mixing, &kernel));
    REQUIRE(cudaGraphLaunch(built, stream));
    REQUIRE(cudaLaunchHostFunc(stream, hear, this));
    REQUIRE(cudaStreamAddCallback(
        stream, [](cudaStream_t, cudaError_t, void* data) { hear(data); }, this, 0));
  }

  uint64_t checksum() override {
    settle();
    return sum_of_blocks() * 31 + heard;
  }
};

int main(int argc, char** argv) {
  Launches program;
  return work::run(program, argc, argv);
}
