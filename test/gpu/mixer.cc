// A plain CUDA program whose result depends on every byte of its memory and on the order of its kernels. It allocates --bytes in blocks of
// assorted sizes, fills them from --seed, mixes them into each other for --rounds (or for --seconds) and prints a checksum. The same seed,
// bytes, largest, churn and rounds give the same checksum, whatever happens to the memory in between.
//
//   --bytes 24G --largest 2G --smallest 256   how much, and the sizes of the blocks
//   --rounds N | --seconds S   how long
//   --churn K                  every K rounds one block is freed and another of the same size allocated and filled
//   --sync-bytes 1G            wait for the GPU after kernels over so many bytes
//   --gap-ms 20                report every pause between two such waits that is longer
//   --managed                  managed memory instead of plain: it may be more than the GPU has, by demand paging
//   --mark-ms 100              report the bytes worked on so far, at most so often
//   --visits N --pause-ms P    instead of mixing: N times allocate everything, fill, sum, free, then pause
// Prints JSON lines; times are CLOCK_MONOTONIC nanoseconds.
#include <unistd.h>

#include <cinttypes>
#include <cmath>
#include <random>

#include "program.h"

namespace gputest {
namespace {

struct Block {
  CUdeviceptr data;
  uint64_t words;
};

// Log-uniform sizes from `smallest` to `largest`, so that small and large blocks both are many; the sum is `total` rounded down to 8.
std::vector<uint64_t> block_sizes(uint64_t total, uint64_t smallest, uint64_t largest, std::mt19937_64& random) {
  std::vector<uint64_t> sizes;
  std::uniform_real_distribution<double> unit(0, 1);
  uint64_t left = total / 8 * 8;
  while (left > 0) {
    const double ratio = static_cast<double>(largest) / static_cast<double>(smallest);
    uint64_t bytes = static_cast<uint64_t>(static_cast<double>(smallest) * std::pow(ratio, unit(random))) / 8 * 8;
    bytes = std::min(std::max<uint64_t>(bytes, 8), left);
    sizes.push_back(bytes);
    left -= bytes;
  }
  return sizes;
}

class Mixer {
 public:
  explicit Mixer(const Options& options)
      : seed_(options.number("seed", 1)),
        bytes_(options.number("bytes", 64u << 20)),
        sync_bytes_(options.number("sync-bytes", 1ull << 30)),
        gap_ns_(options.number("gap-ms", 20) * 1'000'000),
        churn_(options.number("churn", 0)),
        mark_ns_(options.number("mark-ms", 0) * 1'000'000),
        managed_(options.has("managed")),
        random_(seed_) {
    open_gpu();
    fill_ = kernel("sim_fill");
    add_ = kernel("sim_add");
    mix_ = kernel("sim_mix");
    checksum_ = kernel("sim_checksum");
    require(driver().stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate");
    sizes_ = block_sizes(bytes_, std::max<uint64_t>(8, options.number("smallest", 256)), options.number("largest", 2ull << 30), random_);
    last_ns_ = now_ns();
  }

  void allocate() {
    for (const uint64_t bytes : sizes_) {
      blocks_.push_back(allocate_block(bytes));
    }
  }

  void fill() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      fill_block(blocks_[i], i);
    }
    settle();
  }

  void mix(uint64_t round) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Block& block = blocks_[i];
      const Block& other = blocks_[(i * 7 + round * 13 + 1) % blocks_.size()];
      launch(add_, block.words, stream_, block.data, other.data, std::min(block.words, other.words));
      launch(mix_, block.words, stream_, block.data, block.words, round * blocks_.size() + i);
      account(block.words * 8);
    }
    if (churn_ != 0 && round % churn_ == churn_ - 1) {
      replace_one(round);
    }
  }

  uint64_t checksum() {
    const size_t bytes = blocks_.size() * 8;
    CUdeviceptr sums = 0;
    require(driver().mem_alloc(&sums, bytes), "cuMemAlloc");
    require(driver().memset_d8_async(sums, 0, bytes, stream_), "cuMemsetD8Async");
    for (size_t i = 0; i < blocks_.size(); ++i) {
      launch(checksum_, blocks_[i].words, stream_, blocks_[i].data, blocks_[i].words, sums + i * 8);
      account(blocks_[i].words * 8);
    }
    std::vector<uint64_t> each(blocks_.size());
    require(driver().memcpy_dtoh_async(each.data(), sums, bytes, stream_), "cuMemcpyDtoHAsync");
    settle();
    require(driver().mem_free(sums), "cuMemFree");
    uint64_t all = 0;
    for (const uint64_t sum : each) {
      all = all * 31 + sum;
    }
    return all;
  }

  void free() {
    settle();
    for (const Block& block : blocks_) {
      require(driver().mem_free(block.data), "cuMemFree");
    }
    blocks_.clear();
  }

  // Waits for the GPU and reports the pause if it was long.
  void settle() {
    require(driver().stream_synchronize(stream_), "cuStreamSynchronize");
    const uint64_t now = now_ns();
    if (now - last_ns_ > gap_ns_) {
      std::printf("{\"event\": \"gap\", \"from\": %" PRIu64 ", \"to\": %" PRIu64 "}\n", last_ns_, now);
      std::fflush(stdout);
    }
    last_ns_ = now;
    done_ += submitted_;
    submitted_ = 0;
    if (mark_ns_ != 0 && now - marked_ns_ >= mark_ns_) {
      marked_ns_ = now;
      std::printf("{\"event\": \"mark\", \"t\": %" PRIu64 ", \"done\": %" PRIu64 "}\n", now, done_);
      std::fflush(stdout);
    }
  }

  uint64_t bytes() const { return bytes_; }
  size_t blocks() const { return sizes_.size(); }

 private:
  Block allocate_block(uint64_t bytes) {
    Block block{0, bytes / 8};
    if (managed_) {
      require(driver().mem_alloc_managed != nullptr ? driver().mem_alloc_managed(&block.data, bytes, 1) : -1, "cuMemAllocManaged");
    } else {
      require(driver().mem_alloc(&block.data, bytes), "cuMemAlloc");
    }
    return block;
  }

  void fill_block(const Block& block, uint64_t salt) {
    launch(fill_, block.words, stream_, block.data, block.words, seed_ + (salt << 32));
    account(block.words * 8);
  }

  void replace_one(uint64_t round) {
    Block& block = blocks_[(round / churn_ * 5) % blocks_.size()];
    settle();
    require(driver().mem_free(block.data), "cuMemFree");
    block = allocate_block(block.words * 8);
    fill_block(block, round + blocks_.size());
  }

  void account(uint64_t bytes) {
    submitted_ += bytes;
    if (submitted_ >= sync_bytes_) {
      settle();
    }
  }

  const uint64_t seed_;
  const uint64_t bytes_;
  const uint64_t sync_bytes_;
  const uint64_t gap_ns_;
  const uint64_t churn_;
  const uint64_t mark_ns_;
  const bool managed_;
  std::mt19937_64 random_;
  CUfunction fill_ = nullptr;
  CUfunction add_ = nullptr;
  CUfunction mix_ = nullptr;
  CUfunction checksum_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<uint64_t> sizes_;
  std::vector<Block> blocks_;
  uint64_t submitted_ = 0;
  uint64_t last_ns_ = 0;
  uint64_t marked_ns_ = 0;
  uint64_t done_ = 0;  // bytes
};

void announce(const char* event) {
  std::printf("{\"event\": \"%s\", \"t\": %" PRIu64 "}\n", event, now_ns());
  std::fflush(stdout);
}

void visit(Mixer& mixer, uint64_t visits, uint64_t pause_ms) {
  for (uint64_t i = 0; i < visits; ++i) {
    usleep(static_cast<useconds_t>(pause_ms * 1000));
    mixer.allocate();
    announce("allocated");
    mixer.fill();
    announce("filled");
    const uint64_t sum = mixer.checksum();
    mixer.free();
    std::printf("{\"event\": \"visited\", \"t\": %" PRIu64 ", \"checksum\": \"%016" PRIx64 "\"}\n", now_ns(), sum);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace gputest

int main(int argc, char** argv) {
  using namespace gputest;
  const Options options(argc, argv);
  const uint64_t begin = now_ns();
  Mixer mixer(options);
  const uint64_t visits = options.number("visits", 0);
  if (visits != 0) {
    visit(mixer, visits, options.number("pause-ms", 0));
    return 0;
  }
  mixer.allocate();
  mixer.fill();
  announce("ready");
  const uint64_t mixing = now_ns();
  const uint64_t seconds = options.number("seconds", 0);
  const uint64_t rounds = options.number("rounds", seconds != 0 ? UINT64_MAX : 10);
  uint64_t round = 0;
  for (; round < rounds && (seconds == 0 || now_ns() - mixing < seconds * 1'000'000'000); ++round) {
    mixer.mix(round);
  }
  mixer.settle();
  const double mixed_s = seconds_since(mixing);
  const uint64_t sum = mixer.checksum();
  std::printf("{\"event\": \"result\", \"t\": %" PRIu64 ", \"checksum\": \"%016" PRIx64 "\", \"rounds\": %" PRIu64
              ", \"blocks\": %zu, \"bytes\": %" PRIu64 ", \"mix_s\": %.3f, \"wall_s\": %.3f}\n",
              now_ns(), sum, round, mixer.blocks(), mixer.bytes(), mixed_s, seconds_since(begin));
  std::fflush(stdout);
  mixer.free();
  return 0;
}
