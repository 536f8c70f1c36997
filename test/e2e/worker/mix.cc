// Mode mix: threads that allocate, fill, mix, copy, verify and free blocks of random sizes until told to stop.
#include <cinttypes>
#include <cmath>
#include <thread>

#include "e2e/worker/block.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {
namespace {

enum class Streams { kOwn, kLegacy, kPerThread };

Streams streams_named(const std::string& name) {
  if (name == "own") return Streams::kOwn;
  if (name == "legacy") return Streams::kLegacy;
  if (name == "per-thread") return Streams::kPerThread;
  fail(kExitUsage, "--streams is '%s'; it may be own, legacy or per-thread", name.c_str());
}

class Mixer {
 public:
  Mixer(const Options& options, CUcontext context, uint64_t number)
      : options_(options),
        context_(context),
        streams_(streams_named(options.text("streams", "own"))),
        hold_(options.number("hold", 32u << 20)),
        largest_(options.number("largest", 16u << 20)),
        floor_(options.number("floor", 0)),
        steps_(options.number("steps", UINT64_MAX)),
        pause_us_(options.number("pause-us", 0)),
        random_(options.number("seed", 1) * 1000 + number) {}

  void run() {
    open();
    for (uint64_t i = 0; i < steps_ && (steps_ != UINT64_MAX || !options_.told_to_stop()); ++i) {
      step();
      if (pause_us_ != 0) usleep(static_cast<useconds_t>(random_() % (2 * pause_us_)));
    }
    for (Block& block : blocks_) {
      block.verify_checksum(scratch_);
      digest_ = digest_ * 31 + block.checksum();
      block.free();
    }
    check(cuda().cuMemFree_v2(scratch_), "cuMemFree");
    if (streams_ == Streams::kOwn) check(cuda().cuStreamDestroy_v2(place_.stream), "cuStreamDestroy");
  }

  uint64_t digest() const { return digest_; }
  uint64_t verified() const { return verified_; }

 private:
  void open() {
    check(cuda().cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    place_.kernels = load_kernels();
    switch (streams_) {
      case Streams::kOwn:
        check(cuda().cuStreamCreate(&place_.stream, 1), "cuStreamCreate");
        break;
      case Streams::kLegacy:
        place_.stream = nullptr;
        break;
      case Streams::kPerThread:
        place_.stream = CU_STREAM_PER_THREAD;
        break;
    }
    check(cuda().cuMemAlloc_v2(&scratch_, 8), "cuMemAlloc");
    if (floor_ != 0) {
      blocks_.emplace_back(place_, floor_, Allocation::kPlain);
      held_ += blocks_.back().bytes();
      blocks_.back().fill(random_());
    }
  }

  // From 1 byte to the largest, log-uniform: small and large ones both are many.
  size_t random_size() {
    double unit = std::uniform_real_distribution<double>(0, 1)(random_);
    return std::max<size_t>(1, static_cast<size_t>(std::pow(static_cast<double>(largest_), unit)));
  }

  Block& any() { return blocks_[random_() % blocks_.size()]; }

  void verify(const Block& block) {
    ++verified_;
    if (random_() % 8 == 0) {
      block.verify_bytes();
    } else {
      block.verify_checksum(scratch_);
    }
  }

  // The floor is the first block, and stays.
  size_t first_that_may_go() const { return floor_ != 0 ? 1 : 0; }

  void drop_one() {
    size_t index = first_that_may_go() + random_() % (blocks_.size() - first_that_may_go());
    held_ -= blocks_[index].bytes();
    verify(blocks_[index]);
    blocks_[index].free();
    std::vector<Block> rest;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (i != index) rest.push_back(std::move(blocks_[i]));
    }
    blocks_ = std::move(rest);
  }

  void add_one() {
    size_t bytes = random_size();
    while (blocks_.size() > first_that_may_go() && (held_ + bytes > hold_ || blocks_.size() > 40)) drop_one();
    constexpr Allocation kWays[] = {Allocation::kPlain, Allocation::kPitch, Allocation::kAsync};
    blocks_.emplace_back(place_, std::min(bytes, hold_ - floor_), kWays[random_() % 3]);
    held_ += blocks_.back().bytes();
    if (random_() % 4 != 0) blocks_.back().fill(random_());
  }

  void step() {
    if (blocks_.size() < 3) return add_one();
    switch (random_() % 10) {
      case 0:
      case 1:
        return add_one();
      case 2:
        return drop_one();
      case 3:
        return any().fill(random_());
      case 4:
        return any().write_from_host(random_);
      case 5:
        return any().copy_from(any());
      case 6:
        return any().add(any());
      case 7:
        return verify(any());
      case 8:
        return any().mix_slowly(random_(), 1'000'000);
      default:
        return any().mix(random_());
    }
  }

  const Options& options_;
  CUcontext context_;
  Streams streams_;
  uint64_t hold_;
  uint64_t largest_;
  uint64_t floor_;
  uint64_t steps_;
  uint64_t pause_us_;
  std::mt19937_64 random_;
  Workplace place_{};
  CUdeviceptr scratch_ = 0;
  std::vector<Block> blocks_;
  uint64_t held_ = 0;
  uint64_t digest_ = 0;
  uint64_t verified_ = 0;
};

}  // namespace

void run_mix(const Options& options) {
  CUcontext context = retain_primary();
  std::vector<Mixer> mixers;
  for (uint64_t i = 0; i < options.number("threads", 1); ++i) mixers.emplace_back(options, context, i);
  say("mixing");
  std::vector<std::thread> threads;
  for (Mixer& mixer : mixers) threads.emplace_back([&mixer] { mixer.run(); });
  for (std::thread& thread : threads) thread.join();
  uint64_t digest = 0;
  uint64_t verified = 0;
  for (const Mixer& mixer : mixers) {
    digest = digest * 31 + mixer.digest();
    verified += mixer.verified();
  }
  std::printf("digest %016" PRIx64 ", %" PRIu64 " blocks verified\n", digest, verified);
  check(cuda().cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease");
}

}  // namespace nvshare::e2e
