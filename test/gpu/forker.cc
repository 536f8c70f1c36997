// Measures fork(). Takes --bytes of GPU memory, fills it, says "ready", then takes orders on standard input:
//   fork N      N children, one after the other, each of which ends at once: milliseconds until fork() returned here, and until it was
//   waited for touch       changes every byte on the GPU, so that this process has a turn sum         the checksum of all its memory
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>

#include "program.h"

namespace gputest {
namespace {

constexpr uint64_t kBlock = 256u << 20;

struct Memory {
  CUstream stream = nullptr;
  std::vector<std::pair<CUdeviceptr, uint64_t>> blocks;  // address, words
  uint64_t rounds = 0;

  explicit Memory(uint64_t bytes) {
    require(driver().stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
    for (uint64_t left = bytes / 8 * 8; left > 0; left -= std::min(left, kBlock)) {
      CUdeviceptr address = 0;
      const uint64_t words = std::min(left, kBlock) / 8;
      require(driver().mem_alloc(&address, words * 8), "cuMemAlloc");
      launch(kernel("sim_fill"), words, stream, address, words, uint64_t{blocks.size()});
      blocks.emplace_back(address, words);
    }
    settle();
  }

  void settle() { require(driver().stream_synchronize(stream), "cuStreamSynchronize"); }

  void touch() {
    for (const auto& [address, words] : blocks) {
      launch(kernel("sim_mix"), words, stream, address, words, rounds);
    }
    ++rounds;
    settle();
  }

  uint64_t sum() {
    CUdeviceptr result = 0;
    require(driver().mem_alloc(&result, 8), "cuMemAlloc");
    uint64_t total = 0;
    for (const auto& [address, words] : blocks) {
      uint64_t one = 0;
      require(driver().memset_d8_async(result, 0, 8, stream), "cuMemsetD8Async");
      launch(kernel("sim_checksum"), words, stream, address, words, result);
      require(driver().memcpy_dtoh_async(&one, result, 8, stream), "cuMemcpyDtoHAsync");
      settle();
      total = total * 31 + one;
    }
    require(driver().mem_free(result), "cuMemFree");
    return total;
  }
};

void serve_fork(uint64_t count) {
  std::vector<double> returned, waited;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t begin = now_ns();
    const pid_t child = fork();
    if (child == 0) {
      _exit(0);
    }
    returned.push_back(micros_since(begin) * 1e-3);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      std::printf("{\"error\": \"fork, or the child's end, failed\"}\n");
      return;
    }
    waited.push_back(micros_since(begin) * 1e-3);
  }
  const Statistics fork_ms = statistics_of(returned);
  const Statistics wait_ms = statistics_of(waited);
  std::printf("{\"fork_ms\": %.3f, \"fork_worst_ms\": %.3f, \"wait_ms\": %.3f, \"wait_worst_ms\": %.3f}\n", fork_ms.median, fork_ms.highest,
              wait_ms.median, wait_ms.highest);
}

}  // namespace
}  // namespace gputest

int main(int argc, char** argv) {
  using namespace gputest;
  const Options options(argc, argv);
  open_gpu();
  Memory memory(options.number("bytes", 64u << 20));
  std::printf("{\"event\": \"ready\"}\n");
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    unsigned long long count = 0;
    if (std::sscanf(line, "fork %llu", &count) == 1) {
      serve_fork(count);
    } else if (std::strncmp(line, "touch", 5) == 0) {
      memory.touch();
      std::printf("{\"touched\": %" PRIu64 "}\n", memory.rounds);
    } else if (std::strncmp(line, "sum", 3) == 0) {
      std::printf("{\"checksum\": \"%016" PRIx64 "\"}\n", memory.sum());
    } else {
      std::printf("{\"error\": \"unknown order\"}\n");
    }
    std::fflush(stdout);
  }
  return 0;
}
