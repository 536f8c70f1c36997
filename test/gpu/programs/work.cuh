// What the CUDA programs of this folder share: the conversation with run.py, as work.py has it, blocks of memory that depend on their
// history, checksums. A program derives from Work. Compiled where the programs run: nvcc -std=c++17 -cudart static.
#pragma once

#include <cuda_runtime.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define REQUIRE(call) work::require((call), #call)

namespace work {

inline void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::fflush(stdout);
    std::_Exit(3);
  }
}

inline void skip(const char* reason) {
  std::printf("{\"event\": \"skip\", \"reason\": \"%s\"}\n", reason);
  std::fflush(stdout);
  std::exit(0);
}

inline uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

__device__ __host__ inline uint64_t scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  return z ^ (z >> 27);
}

__global__ void fill(uint64_t* data, uint64_t words, uint64_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < words; i += uint64_t{gridDim.x} * blockDim.x) {
    data[i] = scramble(seed * 0x9e3779b97f4a7c15ull + i);
  }
}

__global__ void mix(uint64_t* data, uint64_t words, uint64_t round) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < words; i += uint64_t{gridDim.x} * blockDim.x) {
    data[i] = scramble(data[i] + (round + 1) * 0x9e3779b97f4a7c15ull);
  }
}

// Adds to *sum: clear it first.
__global__ void add_up(const uint64_t* data, uint64_t words, unsigned long long* sum) {
  unsigned long long local = 0;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < words; i += uint64_t{gridDim.x} * blockDim.x) {
    local += scramble(data[i] ^ (i * 0x94d049bb133111ebull + 1));
  }
  atomicAdd(sum, local);
}

inline unsigned grid_for(uint64_t words) { return static_cast<unsigned>(words < 256 * 2048 ? (words + 255) / 256 : 2048); }

struct Block {
  uint64_t* data;
  uint64_t words;
};

// Halves of halves, so that large and small blocks are there; in sum about `total`.
inline std::vector<uint64_t> pieces_of(uint64_t total, uint64_t smallest = 1u << 20) {
  std::vector<uint64_t> sizes;
  while (total >= 2 * smallest) {
    sizes.push_back(total / 1024 * 512);
    total -= sizes.back();
  }
  if (total / 512 > 0) {
    sizes.push_back(total / 512 * 512);
  }
  return sizes;
}

struct Work {
  uint64_t seed = 1;
  uint64_t held = uint64_t{4} << 30;
  std::vector<Block> blocks;

  virtual ~Work() = default;
  virtual void start() { allocate(held); }
  virtual void unit(uint64_t i) = 0;
  virtual uint64_t checksum() { return sum_of_blocks(); }
  virtual void settle() { REQUIRE(cudaDeviceSynchronize()); }

  void allocate(uint64_t bytes) {
    for (const uint64_t size : pieces_of(bytes)) {
      Block block{nullptr, size / 8};
      REQUIRE(cudaMalloc(&block.data, size));
      fill<<<grid_for(block.words), 256>>>(block.data, block.words, seed + (blocks.size() << 32));
      blocks.push_back(block);
    }
    REQUIRE(cudaDeviceSynchronize());
  }

  void mix_all(uint64_t round, cudaStream_t stream = nullptr) {
    for (size_t k = 0; k < blocks.size(); ++k) {
      mix<<<grid_for(blocks[k].words), 256, 0, stream>>>(blocks[k].data, blocks[k].words, round * 64 + k);
    }
    REQUIRE(cudaGetLastError());
  }

  uint64_t sum_of(const uint64_t* data, uint64_t words) {
    unsigned long long* sum = nullptr;
    unsigned long long found = 0;
    REQUIRE(cudaMalloc(&sum, 8));
    REQUIRE(cudaMemset(sum, 0, 8));
    add_up<<<grid_for(words), 256>>>(data, words, sum);
    REQUIRE(cudaMemcpy(&found, sum, 8, cudaMemcpyDeviceToHost));
    REQUIRE(cudaFree(sum));
    return found;
  }

  uint64_t sum_of_blocks() {
    uint64_t total = 0;
    for (const Block& block : blocks) {
      total = total * 31 + sum_of(block.data, block.words);
    }
    return total;
  }
};

// Standard input without waiting for it; its end counts as "stop".
class Orders {
 public:
  std::string wait_line() {
    while (text_.find('\n') == std::string::npos && !ended_) {
      read_more();
    }
    const size_t end = text_.find('\n');
    const std::string line = text_.substr(0, end);
    text_.erase(0, end == std::string::npos ? end : end + 1);
    return line;
  }

  bool told_to_stop() {
    pollfd input{0, POLLIN, 0};
    while (!ended_ && poll(&input, 1, 0) == 1) {
      read_more();
    }
    return ended_ || text_.find("stop") != std::string::npos;
  }

 private:
  void read_more() {
    char bytes[256];
    const ssize_t got = read(0, bytes, sizeof bytes);
    ended_ = got <= 0;
    text_.append(bytes, got > 0 ? static_cast<size_t>(got) : 0);
  }

  std::string text_;
  bool ended_ = false;
};

inline uint64_t bytes_of(const char* text) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  const double unit = *end == 'G' ? 1 << 30 : *end == 'M' ? 1 << 20 : *end == 'K' ? 1 << 10 : 1;
  if (end == text || value <= 0) {
    std::fprintf(stderr, "'%s' is no amount of memory; say 4G or 512M\n", text);
    std::exit(2);
  }
  return static_cast<uint64_t>(value * unit);
}

inline int run(Work& program, int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seed") == 0) {
      program.seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (std::strcmp(argv[i], "--held") == 0) {
      program.held = bytes_of(argv[i + 1]);
    } else {
      std::fprintf(stderr, "unknown option %s; there are --seed N and --held BYTES\n", argv[i]);
      return 2;
    }
  }
  program.start();
  program.unit(0);
  program.settle();
  uint64_t held = 0;
  for (const Block& block : program.blocks) {
    held += block.words * 8;
  }
  std::printf("{\"event\": \"ready\", \"t\": %" PRIu64 ", \"held\": %" PRIu64 ", \"pids\": [%d]}\n", now_ns(), held, getpid());
  std::fflush(stdout);
  Orders orders;
  const std::string line = orders.wait_line();
  unsigned long long wanted = UINT64_MAX;
  const bool bounded = std::sscanf(line.c_str(), "go %llu", &wanted) == 1;
  const uint64_t begin = now_ns();
  uint64_t last = begin;
  uint64_t done = 0;
  while (bounded ? done < wanted : !orders.told_to_stop()) {
    program.unit(++done);
    if (done % 4 == 0) {
      program.settle();
    }
    if (now_ns() - last > 1000000000u) {
      last = now_ns();
      std::printf("{\"event\": \"progress\", \"units\": %" PRIu64 ", \"t\": %" PRIu64 "}\n", done, last);
      std::fflush(stdout);
    }
  }
  program.settle();
  const uint64_t end = now_ns();
  const uint64_t sum = program.checksum();
  std::printf("{\"event\": \"result\", \"units\": %" PRIu64 ", \"begin_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64
              ", \"work_s\": %.3f, \"checksum\": \"%016" PRIx64 "\", \"held\": %" PRIu64 "}\n",
              done, begin, end, static_cast<double>(end - begin) * 1e-9, sum, held);
  std::fflush(stdout);
  return 0;
}

}  // namespace work
