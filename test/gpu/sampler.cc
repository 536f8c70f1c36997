// Samples a GPU's used memory by NVML every --interval-us (5000), until its standard input ends; then prints one JSON line with the
// figures.
// --out FILE gets the raw samples, one JSON line for each change of at least 1 MiB. Utilisation and per-process memory: every 100 ms.
#include <dlfcn.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <map>
#include <thread>

#include "program.h"

namespace gputest {
namespace {

using NvmlDevice = struct NvmlDevice_st*;

struct NvmlMemory {
  unsigned long long total, free, used;
};

struct NvmlUtilization {
  unsigned gpu, memory;
};

struct NvmlProcess {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

struct Nvml {
  int (*init)();
  int (*device)(unsigned, NvmlDevice*);
  int (*memory)(NvmlDevice, NvmlMemory*);
  int (*utilization)(NvmlDevice, NvmlUtilization*);
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*);
};

template <class Function>
void load(void* library, const char* symbol, Function*& slot) {
  slot = reinterpret_cast<Function*>(dlsym(library, symbol));
}

Nvml load_nvml() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "no NVML: %s\n", dlerror());
    std::exit(3);
  }
  Nvml n{};
  load(library, "nvmlInit_v2", n.init);
  load(library, "nvmlDeviceGetHandleByIndex_v2", n.device);
  load(library, "nvmlDeviceGetMemoryInfo", n.memory);
  load(library, "nvmlDeviceGetUtilizationRates", n.utilization);
  load(library, "nvmlDeviceGetComputeRunningProcesses_v3", n.processes);
  if (n.init == nullptr || n.device == nullptr || n.memory == nullptr || n.init() != 0) {
    std::fprintf(stderr, "NVML does not start\n");
    std::exit(3);
  }
  return n;
}

class Sampler {
 public:
  Sampler(const Options& options, std::FILE* out) : nvml_(load_nvml()), out_(out) {
    if (nvml_.device(static_cast<unsigned>(options.number("gpu", 0)), &device_) != 0) {
      std::fprintf(stderr, "NVML has no such GPU\n");
      std::exit(3);
    }
  }

  void sample() {
    NvmlMemory memory{};
    const uint64_t now = now_ns();
    if (nvml_.memory(device_, &memory) != 0) {
      ++failed_;
      return;
    }
    if (samples_++ == 0) {
      first_ = memory.used;
    } else {
      longest_ns_ = std::max(longest_ns_, now - last_ns_);
      late_ += now - last_ns_ > 10'000'000 ? 1 : 0;
    }
    last_ns_ = now;
    total_ = memory.total;
    if (memory.used > highest_) {
      highest_ = memory.used;
      highest_ns_ = now;
    }
    const uint64_t change = memory.used > written_ ? memory.used - written_ : written_ - memory.used;
    if (change >= (1u << 20)) {
      written_ = memory.used;
      std::fprintf(out_, "{\"t\": %" PRIu64 ", \"used\": %llu}\n", now, memory.used);
    }
  }

  // Utilisation and processes every 100 ms until `stop`, in a thread of its own: these calls are slow.
  void watch_processes(const std::atomic<bool>& stop) {
    while (!stop.load()) {
      sample_slow(now_ns());
      usleep(100'000);
    }
  }

  void report() const {
    std::printf("{\"samples\": %" PRIu64 ", \"failed\": %" PRIu64 ", \"longest_interval_ms\": %.1f, \"intervals_over_10_ms\": %" PRIu64
                ", \"total\": %" PRIu64 ", \"first_used\": %" PRIu64 ", \"highest_used\": %" PRIu64 ", \"highest_t\": %" PRIu64
                ", \"process_peaks\": {",
                samples_, failed_, static_cast<double>(longest_ns_) * 1e-6, late_, total_, first_, highest_, highest_ns_);
    const char* separator = "";
    for (const auto& [pid, used] : peaks_) {
      std::printf("%s\"%u\": %llu", separator, pid, used);
      separator = ", ";
    }
    std::printf("}}\n");
  }

 private:
  void sample_slow(uint64_t now) {
    NvmlUtilization utilization{};
    if (nvml_.utilization != nullptr && nvml_.utilization(device_, &utilization) == 0) {
      std::fprintf(out_, "{\"t\": %" PRIu64 ", \"gpu_percent\": %u}\n", now, utilization.gpu);
    }
    NvmlProcess processes[64];
    unsigned count = 64;
    if (nvml_.processes == nullptr || nvml_.processes(device_, &count, processes) != 0) {
      return;
    }
    std::string line;
    for (unsigned i = 0; i < count; ++i) {
      unsigned long long& peak = peaks_[processes[i].pid];
      peak = std::max(peak, processes[i].used);
      line += (i == 0 ? "\"" : ", \"") + std::to_string(processes[i].pid) + "\": " + std::to_string(processes[i].used);
    }
    std::fprintf(out_, "{\"t\": %" PRIu64 ", \"processes\": {%s}}\n", now, line.c_str());  // one call: lines of two threads stay whole
  }

  Nvml nvml_;
  NvmlDevice device_ = nullptr;
  std::FILE* out_;
  uint64_t samples_ = 0, failed_ = 0, longest_ns_ = 0, late_ = 0, last_ns_ = 0;
  uint64_t total_ = 0, first_ = 0, highest_ = 0, highest_ns_ = 0, written_ = 0;
  std::map<unsigned, unsigned long long> peaks_;
};

}  // namespace
}  // namespace gputest

int main(int argc, char** argv) {
  using namespace gputest;
  const Options options(argc, argv);
  const std::string path = options.text("out", "/dev/null");
  std::FILE* out = std::fopen(path.c_str(), "w");
  if (out == nullptr) {
    std::perror(path.c_str());
    return 2;
  }
  Sampler sampler(options, out);
  std::atomic<bool> stop{false};
  std::thread slow([&] { sampler.watch_processes(stop); });
  const uint64_t interval = options.number("interval-us", 5000) * 1000;
  uint64_t next = now_ns();
  sampler.sample();
  std::printf("{\"event\": \"sampling\"}\n");
  std::fflush(stdout);
  for (;;) {
    sampler.sample();
    next = std::max(next + interval, now_ns());
    const timespec wake{static_cast<time_t>(next / 1'000'000'000), static_cast<long>(next % 1'000'000'000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr);
    pollfd input{0, POLLIN, 0};
    char bytes[64];
    if (poll(&input, 1, 0) == 1 && read(0, bytes, sizeof bytes) <= 0) {
      break;
    }
  }
  stop = true;
  slow.join();
  sampler.report();
  std::fclose(out);
  return 0;
}
