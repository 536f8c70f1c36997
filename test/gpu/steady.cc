// A program whose work can be counted: kernels of known, fixed amounts of work, one after the other, so that its share of the GPU is what
// it got done over what it gets done alone. Says {"event": "ready"} and takes orders on standard input, each answered with one JSON line:
//
//   calibrate US,US,...      how many rounds a kernel of so many microseconds has: {"rounds": [..], "us": [what they take]}
//   run BEGIN END R,R,...    from one time to the other (CLOCK_MONOTONIC, ns) kernels of R rounds each in turn, a little of it in flight:
//                            {"marks": [[t, done], ...]}, the rounds done by then; marks are 5 ms apart at least
//   graph BEGIN END R        the same as a CUDA graph of 20 kernels, launched again and again
//   burst BEGIN END R W P    W microseconds of kernels of R rounds, a wait for them, then P microseconds of nothing, and so on;
//                            also "cycles": how many, and how long each's parts took on average
//   blocks N                 kernels have so many thread blocks from now on (1024): {"blocks": N}
//   fault                    a kernel that writes where there is no memory: {"fault": what the driver says of it}
//   hold BYTES               as --bytes, from now on; never less than before: {"held": .., "ms": .., "refused": 0 or 1}
// --bytes N (256M) in blocks of --block: memory that it holds and, every --touch-ms milliseconds, uses; 0: none. --used N: of it only the
// first so many bytes are ever used. --spin: whoever waits for the GPU spins (CU_CTX_SCHED_SPIN).
// Ends with its input.
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "program.h"

namespace gputest {
namespace {

constexpr uint64_t kBatch_ns = 2'000'000;  // of work between two looks at the clock
constexpr uint64_t kMark_ns = 5'000'000;
constexpr int kGraphKernels = 20;
constexpr int kMeasures = 15;  // of which the least counts

class Worker {
 public:
  explicit Worker(const Options& options) {
    open_gpu(options.has("spin") ? 1 : 0);
    work_ = kernel("sim_work");
    require(driver().stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate");
    require(driver().mem_alloc(&out_, 8), "cuMemAlloc");
    for (CUevent& event : events_) require(driver().event_create(&event, 2), "cuEventCreate");  // without timing
    const uint64_t bytes = options.number("bytes", 0);
    words_ = options.number("block", 256u << 20) / 8;
    touch_ns_ = options.number("touch-ms", 100) * 1'000'000;
    mix_ = kernel("sim_mix");
    used_ = options.number("used", UINT64_MAX);
    if (!take(bytes)) require(2, "cuMemAlloc");
  }

  void set_blocks(uint64_t blocks) {
    blocks_of_kernel_ = static_cast<unsigned>(blocks);
    std::printf("{\"blocks\": %u}\n", blocks_of_kernel_);
  }

  void fault() {
    launch(mix_, 1024, stream_, CUdeviceptr{0x1000}, uint64_t{1024}, uint64_t{1});
    std::printf("{\"fault\": %d}\n", static_cast<int>(driver().stream_synchronize(stream_)));
  }

  void hold(uint64_t bytes) {
    const uint64_t begin = now_ns();
    const bool all = take(bytes);
    std::printf("{\"held\": %" PRIu64 ", \"ms\": %.1f, \"refused\": %d}\n", held_, static_cast<double>(now_ns() - begin) / 1e6,
                all ? 0 : 1);
  }

  void calibrate(const std::vector<double>& wanted_us) {
    measure(1000, 20);  // warm
    const double few = least(2000, 10);
    const double many = least(42000, 10);
    per_round_ns_ = std::max((many - few) / 40000, 1e-3);
    const double base = std::max(few - 2000 * per_round_ns_, 0.0);
    std::string rounds;
    std::string took;
    for (const double us : wanted_us) {
      const auto count = static_cast<uint64_t>(std::max((us * 1000 - base) / per_round_ns_, 100.0));
      const double ns = measure(count, static_cast<int>(std::clamp(20'000.0 / us, 2.0, 200.0)));
      rounds += (rounds.empty() ? "" : ", ") + std::to_string(count);
      took += (took.empty() ? "" : ", ") + std::to_string(ns / 1000);
    }
    std::printf("{\"rounds\": [%s], \"us\": [%s]}\n", rounds.c_str(), took.c_str());
  }

  void run(uint64_t begin, uint64_t end, const std::vector<uint64_t>& rounds) {
    start(begin);
    size_t next = 0;
    stream_of_batches(end, [&] {
      uint64_t batch = 0;
      do {
        submit(rounds[next]);
        batch += rounds[next];
        next = (next + 1) % rounds.size();
      } while (static_cast<double>(batch) * ns_per_round() < kBatch_ns);
      return batch;
    });
    tell();
  }

  void graph(uint64_t begin, uint64_t end, uint64_t rounds) {
    CUgraph captured = nullptr;
    CUgraphExec graph = nullptr;
    require(driver().stream_begin_capture(stream_, kCaptureThreadLocal), "cuStreamBeginCapture");
    for (int i = 0; i < kGraphKernels; ++i) submit(rounds);
    require(driver().stream_end_capture(stream_, &captured), "cuStreamEndCapture");
    require(driver().graph_instantiate(&graph, captured, 0), "cuGraphInstantiate");
    start(begin);
    stream_of_batches(end, [&] {
      require(driver().graph_launch(graph, stream_), "cuGraphLaunch");
      return rounds * kGraphKernels;
    });
    tell();
  }

  void burst(uint64_t begin, uint64_t end, uint64_t rounds, uint64_t work_us, uint64_t pause_us) {
    start(begin);
    Cycles cycles;
    while (now_ns() < end) {
      const uint64_t begins = now_ns();
      uint64_t first = 0;
      for (double ns = 0; ns < static_cast<double>(work_us) * 1000; ns += static_cast<double>(rounds) * ns_per_round()) {
        submit(rounds);
        if (first == 0) first = now_ns();
        done_ += rounds;
      }
      const uint64_t submitted = now_ns();
      settle();
      const uint64_t settled = now_ns();
      mark();
      usleep(static_cast<useconds_t>(pause_us));
      cycles.add(first - begins, submitted - first, settled - submitted, now_ns() - settled);
    }
    tell(cycles.text());
  }

 private:
  // Blocks until `bytes` are held. False: the driver, or a limit, has no more.
  bool take(uint64_t bytes) {
    for (; held_ + words_ * 8 <= bytes; held_ += words_ * 8) {
      CUdeviceptr block = 0;
      if (driver().mem_alloc(&block, words_ * 8) != kSuccess) return false;
      if (held_ + words_ * 8 > used_) continue;  // asked for, and left alone
      launch(mix_, words_, stream_, block, words_, held_);
      blocks_.push_back(block);
    }
    settle();
    return true;
  }

  // Where the time of a burst's cycles goes, on average.
  class Cycles {
   public:
    void add(uint64_t first_ns, uint64_t submissions_ns, uint64_t wait_ns, uint64_t pause_ns) {
      ++count_;
      first_ns_ += first_ns;
      submissions_ns_ += submissions_ns;
      wait_ns_ += wait_ns;
      pause_ns_ += pause_ns;
    }
    std::string text() const {
      const double each = static_cast<double>(count_ > 0 ? count_ : 1) * 1000;
      char text[200];
      std::snprintf(text, sizeof text,
                    ", \"cycles\": {\"count\": %" PRIu64
                    ", \"first_us\": %.1f, \"submissions_us\": %.1f, \"wait_us\": %.1f, \"pause_us\": %.1f}",
                    count_, static_cast<double>(first_ns_) / each, static_cast<double>(submissions_ns_) / each,
                    static_cast<double>(wait_ns_) / each, static_cast<double>(pause_ns_) / each);
      return text;
    }

   private:
    uint64_t count_ = 0, first_ns_ = 0, submissions_ns_ = 0, wait_ns_ = 0, pause_ns_ = 0;
  };

  double ns_per_round() const { return per_round_ns_; }
  void settle() { require(driver().stream_synchronize(stream_), "cuStreamSynchronize"); }

  void submit(uint64_t rounds) {
    void* parameters[] = {&rounds, &out_};
    require(driver().launch_kernel(work_, blocks_of_kernel_, 1, 1, 256, 1, 1, 0, stream_, parameters, nullptr), "cuLaunchKernel");
  }

  // Nanoseconds that one such kernel takes, back to back.
  double measure(uint64_t rounds, int count) {
    settle();
    const uint64_t begin = now_ns();
    for (int i = 0; i < count; ++i) submit(rounds);
    settle();
    return static_cast<double>(now_ns() - begin) / count;
  }

  // The least of several: what the machine does beside makes each longer, and with one that it held up kernels came out several times too
  // long or too short.
  double least(uint64_t rounds, int count) {
    double ns = measure(rounds, count);
    for (int again = 1; again < kMeasures; ++again) ns = std::min(ns, measure(rounds, count));
    return ns;
  }

  void start(uint64_t begin) {
    marks_.clear();
    done_ = 0;
    while (now_ns() < begin) usleep(200);
    marks_.push_back({now_ns(), 0});
  }

  void mark() {
    const uint64_t now = now_ns();
    if (now - marks_.back().first >= kMark_ns) marks_.push_back({now, done_});
  }

  // Two batches are under way: the GPU has work while we wait for the older one.
  template <typename Submit>
  void stream_of_batches(uint64_t end, Submit submit_batch) {
    uint64_t sizes[2] = {};
    uint64_t touched = now_ns();
    size_t block = 0;
    for (uint64_t batch = 0; now_ns() < end; ++batch) {
      const size_t slot = batch % 2;
      if (batch >= 2) {
        require(driver().event_synchronize(events_[slot]), "cuEventSynchronize");
        done_ += sizes[slot];
        mark();
      }
      if (!blocks_.empty() && now_ns() - touched >= touch_ns_) {
        touched = now_ns();
        launch(mix_, words_, stream_, blocks_[block], words_, batch);
        block = (block + 1) % blocks_.size();
      }
      sizes[slot] = submit_batch();
      require(driver().event_record(events_[slot], stream_), "cuEventRecord");
    }
    settle();
  }

  void tell(const std::string& more = {}) {
    std::string text;
    for (const auto& [time, done] : marks_) {
      text += (text.empty() ? "[" : ", [") + std::to_string(time) + ", " + std::to_string(done) + "]";
    }
    std::printf("{\"marks\": [%s]%s}\n", text.c_str(), more.c_str());
  }

  CUfunction work_ = nullptr;
  CUfunction mix_ = nullptr;
  CUstream stream_ = nullptr;
  CUevent events_[2] = {};
  CUdeviceptr out_ = 0;
  std::vector<CUdeviceptr> blocks_;
  unsigned blocks_of_kernel_ = 1024;
  uint64_t words_ = 0;
  uint64_t held_ = 0;
  uint64_t used_ = UINT64_MAX;
  uint64_t touch_ns_ = 0;
  double per_round_ns_ = 1;
  uint64_t done_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> marks_;

 public:
  void set_ns_per_round(double nanoseconds) { per_round_ns_ = nanoseconds; }
};

template <typename Number>
std::vector<Number> list_of(const std::string& text) {
  std::vector<Number> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) numbers.push_back(static_cast<Number>(std::strtod(part.c_str(), nullptr)));
  return numbers;
}

}  // namespace
}  // namespace gputest

int main(int argc, char** argv) {
  using namespace gputest;
  const Options options(argc, argv);
  Worker worker{options};
  const double picoseconds = static_cast<double>(options.number("round-ps", 0));  // a round's time, from another's calibration
  if (picoseconds > 0) worker.set_ns_per_round(picoseconds / 1000);
  std::printf("{\"event\": \"ready\"}\n");
  std::fflush(stdout);
  char line[512];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t rounds = 0;
    uint64_t work = 0;
    uint64_t pause = 0;
    char list[256] = {};
    if (std::sscanf(line, "hold %" SCNu64, &rounds) == 1) {
      worker.hold(rounds);
    } else if (std::sscanf(line, "blocks %" SCNu64, &rounds) == 1 && rounds > 0 && rounds <= 1u << 20) {
      worker.set_blocks(rounds);
    } else if (std::strcmp(line, "fault\n") == 0) {
      worker.fault();
    } else if (std::sscanf(line, "calibrate %255s", list) == 1) {
      worker.calibrate(list_of<double>(list));
    } else if (std::sscanf(line, "run %" SCNu64 " %" SCNu64 " %255s", &begin, &end, list) == 3 && !list_of<uint64_t>(list).empty()) {
      worker.run(begin, end, list_of<uint64_t>(list));
    } else if (std::sscanf(line, "graph %" SCNu64 " %" SCNu64 " %" SCNu64, &begin, &end, &rounds) == 3) {
      worker.graph(begin, end, rounds);
    } else if (std::sscanf(line, "burst %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &begin, &end, &rounds, &work, &pause) ==
               5) {
      worker.burst(begin, end, rounds, work, pause);
    } else {
      std::printf("{\"error\": \"unknown order\"}\n");
    }
    std::fflush(stdout);
  }
  return 0;
}
