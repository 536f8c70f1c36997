// A program that somebody waits for, or the batch job beside which it runs. It allocates --bytes in blocks of --block, fills them, says
// {"event": "ready"} and then takes orders on standard input, each answered with one JSON line:
//
//   batch S        works for S seconds without a pause: {"rounds": N, "seconds": T}. A round mixes one block
//   serve N MS P   N times: a pause of P seconds, then a request, which mixes all blocks and keeps the GPU busy for MS milliseconds more:
//                  {"took_ms": [...]}, from the wish to its end
//   read N MS P    the same, but a request only reads the blocks, as a server reads its weights
//   sum            {"checksum": "..."} over all memory
// Ends with its input.
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#include "program.h"

namespace gputest {
namespace {

class Server {
 public:
  explicit Server(const Options& options) : seed_(options.number("seed", 1)) {
    open_gpu();
    mix_ = kernel("sim_mix");
    spin_ = kernel("sim_spin");
    checksum_ = kernel("sim_checksum");
    require(driver().stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate");
    words_ = options.number("block", 256u << 20) / 8;
    const CUfunction fill = kernel("sim_fill");
    for (uint64_t held = 0; held + words_ * 8 <= options.number("bytes", 1u << 30); held += words_ * 8) {
      CUdeviceptr block = 0;
      require(driver().mem_alloc(&block, words_ * 8), "cuMemAlloc");
      launch(fill, words_, stream_, block, words_, seed_ + held);
      blocks_.push_back(block);
    }
    require(driver().mem_alloc(&sum_, 8), "cuMemAlloc");
    settle();
  }

  // As training loops do: a few milliseconds of work in flight at most.
  void batch(double seconds) {
    constexpr uint64_t kAtOnce = 16;
    const uint64_t begin = now_ns();
    uint64_t rounds = 0;
    while (seconds_since(begin) < seconds) {
      for (uint64_t i = 0; i < kAtOnce; ++i, ++rounds) mix(next_++ % blocks_.size());
      settle();
    }
    std::printf("{\"rounds\": %" PRIu64 ", \"seconds\": %.6f}\n", rounds, seconds_since(begin));
  }

  void serve(uint64_t requests, uint64_t busy_ms, double pause_s, bool only_reads) {
    std::string took;
    for (uint64_t request = 0; request < requests; ++request) {
      usleep(static_cast<useconds_t>(pause_s * 1e6));
      const uint64_t wanted = now_ns();
      for (size_t i = 0; i < blocks_.size(); ++i) {
        if (only_reads) {
          launch(checksum_, words_, stream_, blocks_[i], words_, sum_);
        } else {
          mix(i);
        }
      }
      launch_spin(spin_, busy_ms * 1'000'000, stream_);
      settle();
      char text[32];
      std::snprintf(text, sizeof text, "%s%.3f", request == 0 ? "" : ", ", seconds_since(wanted) * 1e3);
      took += text;
    }
    std::printf("{\"took_ms\": [%s]}\n", took.c_str());
  }

  void sum() {
    uint64_t all = 0;
    for (const CUdeviceptr block : blocks_) {
      uint64_t one = 0;
      require(driver().memset_d8_async(sum_, 0, 8, stream_), "cuMemsetD8Async");
      launch(checksum_, words_, stream_, block, words_, sum_);
      require(driver().memcpy_dtoh_async(&one, sum_, 8, stream_), "cuMemcpyDtoHAsync");
      settle();
      all = all * 31 + one;
    }
    std::printf("{\"checksum\": \"%016" PRIx64 "\"}\n", all);
  }

 private:
  void mix(size_t block) { launch(mix_, words_, stream_, blocks_[block], words_, round_++); }
  void settle() { require(driver().stream_synchronize(stream_), "cuStreamSynchronize"); }

  const uint64_t seed_;
  CUfunction mix_ = nullptr;
  CUfunction spin_ = nullptr;
  CUfunction checksum_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<CUdeviceptr> blocks_;
  CUdeviceptr sum_ = 0;
  uint64_t words_ = 0;
  uint64_t round_ = 0;
  uint64_t next_ = 0;
};

}  // namespace
}  // namespace gputest

int main(int argc, char** argv) {
  using namespace gputest;
  Server server{Options(argc, argv)};
  std::printf("{\"event\": \"ready\"}\n");
  std::fflush(stdout);
  char line[256];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    double seconds = 0;
    uint64_t requests = 0;
    uint64_t busy_ms = 0;
    if (std::sscanf(line, "batch %lf", &seconds) == 1) {
      server.batch(seconds);
    } else if (std::sscanf(line, "serve %" SCNu64 " %" SCNu64 " %lf", &requests, &busy_ms, &seconds) == 3) {
      server.serve(requests, busy_ms, seconds, false);
    } else if (std::sscanf(line, "read %" SCNu64 " %" SCNu64 " %lf", &requests, &busy_ms, &seconds) == 3) {
      server.serve(requests, busy_ms, seconds, true);
    } else if (std::strcmp(line, "sum\n") == 0) {
      server.sum();
    } else {
      std::printf("{\"error\": \"unknown order\"}\n");
    }
    std::fflush(stdout);
  }
  return 0;
}
