// nvshare-demo-job: a CUDA program such as users have, which knows nothing of nvshare. It takes --bytes of GPU memory, fills it, and goes
// through all of it in each of --steps steps: every block is mixed and computed on for a while, as a training step goes through all
// weights. The checksum at the end depends on every byte and on the order of all kernels.
// Prints JSON lines: {"event":"gpu",...}, {"event":"progress","done":0.25}, {"event":"result",...}. Exit status 3: a CUDA call failed.
#include <cinttypes>
#include <cstring>
#include <deque>

#include "gpu/kernels_ptx.h"
#include "gpu/program.h"

namespace gputest {
namespace {

// As of the other programs, so that tools/command-pages.py reads it.
constexpr char kHelp[] =
    "A CUDA program as users have them, for nvsharectl demo and for trying nvshare out.\n"
    "It fills GPU memory, computes on all of it in each step, and prints a checksum that depends on every byte.\n"
    "Usage: nvshare-demo-job [OPTIONS]\n"
    "\n"
    "Options:\n"
    "  -h,--help                   Print this help message and exit\n"
    "  --version                   Print the version and exit\n"
    "  --bytes BYTES               GPU memory, such as 1.5G (384M)\n"
    "  --block BYTES               size of one block of it, for each of which a kernel is launched (16M)\n"
    "  --steps N                   how often to go through it all (10)\n"
    "  --compute-us N              computing time for each block, in microseconds (20000)\n"
    "  --memory KIND               plain: cuMemAlloc; managed: cuMemAllocManaged, the driver's demand paging (plain)\n"
    "  --seed N                    what it computes (1)\n"
    "  --probe yes                 only say which GPU there is\n";

struct Block {
  CUdeviceptr data = 0;
  uint64_t words = 0;
};

struct Marks {
  CUevent begin = nullptr;
  CUevent end = nullptr;
};

class Job {
 public:
  explicit Job(const Options& options)
      : seed_(options.number("seed", 1)), compute_ns_(options.number("compute-us", 20000) * 1000), steps_(options.number("steps", 10)) {
    open_gpu();
    fill_ = kernel("sim_fill");
    checksum_ = kernel("sim_checksum");
    choose_mixing();
    require(driver().stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate");
    const bool managed = options.text("memory", "plain") == "managed";
    uint64_t left = options.number("bytes", 384u << 20) / 8 * 8;
    const uint64_t block_bytes = std::max<uint64_t>(options.number("block", 16u << 20) / 8 * 8, 8);
    while (left > 0) {
      const uint64_t bytes = std::min(left, block_bytes);
      blocks_.push_back(allocate(bytes, managed));
      left -= bytes;
    }
    require(driver().mem_alloc(&sums_, blocks_.size() * sizeof(uint64_t)), "cuMemAlloc");
    for (Marks& marks : free_marks_) {
      require(driver().event_create(&marks.begin, 0), "cuEventCreate");
      require(driver().event_create(&marks.end, 0), "cuEventCreate");
    }
  }

  void run() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      compute([&] {
        launch(fill_, blocks_[i].words, stream_, blocks_[i].data, blocks_[i].words, seed_ * 0x9e3779b97f4a7c15u + (uint64_t{i} << 40));
      });
    }
    for (uint64_t step = 0; step < steps_; ++step) {
      for (size_t i = 0; i < blocks_.size(); ++i) {
        const Block& block = blocks_[i];
        compute([&] { mix(block, (step << 32) ^ i); });
      }
      report_progress(static_cast<double>(step + 1) / static_cast<double>(steps_));
    }
  }

  uint64_t checksum() {
    const size_t bytes = blocks_.size() * sizeof(uint64_t);
    require(driver().memset_d8_async(sums_, 0, bytes, stream_), "cuMemsetD8Async");
    for (size_t i = 0; i < blocks_.size(); ++i) {
      compute([&] { launch(checksum_, blocks_[i].words, stream_, blocks_[i].data, blocks_[i].words, sums_ + i * sizeof(uint64_t)); });
    }
    while (!in_flight_.empty()) finish_oldest();
    std::vector<uint64_t> sums(blocks_.size());
    require(driver().memcpy_dtoh_async(sums.data(), sums_, bytes, stream_), "cuMemcpyDtoHAsync");
    require(driver().stream_synchronize(stream_), "cuStreamSynchronize");
    uint64_t result = 0;
    for (const uint64_t sum : sums) result = (result ^ sum) * 0x9e3779b97f4a7c15u;
    return result;
  }

  double busy_s() const { return busy_ms_ / 1000; }

 private:
  // The stand-in GPU has one kernel that mixes and computes for a while; a real one gets the two kernels of kernels_ptx.h.
  void choose_mixing() {
    CUmodule module = nullptr;
    require(driver().module_load_data(&module, kKernelsPtx), "cuModuleLoadData");
    if (driver().module_get_function(&mix_slow_, module, "sim_mix_slow") == kSuccess) return;
    mix_slow_ = nullptr;
    mix_ = kernel("sim_mix");
    spin_ = kernel("sim_spin");
  }

  void mix(const Block& block, uint64_t salt) {
    if (mix_slow_ != nullptr) {
      launch(mix_slow_, block.words, stream_, block.data, block.words, salt, compute_ns_);
    } else {
      launch(mix_, block.words, stream_, block.data, block.words, seed_ ^ salt);
      launch_spin(spin_, compute_ns_, stream_);
    }
  }

  Block allocate(uint64_t bytes, bool managed) {
    Block block{0, bytes / 8};
    if (managed) {
      constexpr unsigned kAttachGlobal = 1;
      require(driver().mem_alloc_managed != nullptr ? driver().mem_alloc_managed(&block.data, bytes, kAttachGlobal) : CUresult{801},
              "cuMemAllocManaged");
    } else {
      require(driver().mem_alloc(&block.data, bytes), "cuMemAlloc");
    }
    return block;
  }

  // Submits one block's work between two events; a few blocks are in flight, so that the GPU never waits for the host.
  template <class Submit>
  void compute(Submit submit) {
    if (free_marks_.empty()) finish_oldest();
    const Marks marks = free_marks_.back();
    free_marks_.pop_back();
    require(driver().event_record(marks.begin, stream_), "cuEventRecord");
    submit();
    require(driver().event_record(marks.end, stream_), "cuEventRecord");
    in_flight_.push_back(marks);
  }

  void finish_oldest() {
    const Marks marks = in_flight_.front();
    in_flight_.pop_front();
    require(driver().event_synchronize(marks.end), "cuEventSynchronize");
    float elapsed_ms = 0;
    require(driver().event_elapsed(&elapsed_ms, marks.begin, marks.end), "cuEventElapsedTime");
    busy_ms_ += static_cast<double>(elapsed_ms);
    free_marks_.push_back(marks);
  }

  static void report_progress(double done) {
    std::printf("{\"event\":\"progress\",\"done\":%.4f}\n", done);
    std::fflush(stdout);
  }

  static constexpr size_t kInFlight = 4;

  const uint64_t seed_;
  const uint64_t compute_ns_;
  const uint64_t steps_;
  CUfunction fill_ = nullptr;
  CUfunction mix_slow_ = nullptr;
  CUfunction mix_ = nullptr;
  CUfunction checksum_ = nullptr;
  CUfunction spin_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr sums_ = 0;  // one word for each block
  std::vector<Block> blocks_;
  std::vector<Marks> free_marks_ = std::vector<Marks>(kInFlight);
  std::deque<Marks> in_flight_;
  double busy_ms_ = 0;
};

void report_gpu() {
  require(driver().init(0), "cuInit");
  CUdevice device = 0;
  require(driver().device_get(&device, 0), "cuDeviceGet");
  char name[128] = {};
  size_t total = 0;
  require(driver().device_name(name, sizeof name - 1, device), "cuDeviceGetName");
  require(driver().device_total(&total, device), "cuDeviceTotalMem");
  std::printf("{\"event\":\"gpu\",\"name\":\"%s\",\"total\":%zu}\n", name, total);
  std::fflush(stdout);
}

}  // namespace
}  // namespace gputest

int main(int argc, char** argv) {
  using namespace gputest;
  const uint64_t begin = now_ns();
  const char* first = argc > 1 ? argv[1] : "";
  if (std::strcmp(first, "--help") == 0 || std::strcmp(first, "-h") == 0) return std::fputs(kHelp, stdout) < 0;
  if (std::strcmp(first, "--version") == 0) return std::puts(NVSHARE_VERSION) < 0;
  const Options options(argc, argv);
  report_gpu();
  if (options.has("probe")) return 0;
  Job job(options);
  job.run();
  const uint64_t sum = job.checksum();
  std::printf("{\"event\":\"result\",\"checksum\":\"%016" PRIx64 "\",\"busy_s\":%.4f,\"wall_s\":%.4f}\n", sum, job.busy_s(),
              seconds_since(begin));
  std::fflush(stdout);
  return 0;
}
