// Collectives: programs, or threads of one program, whose GPU work waits for each other's on other GPUs.
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "e2e/worker/block.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {
namespace {

// What all parties of a meeting share, in a file that each maps.
struct Meeting {
  std::atomic<uint64_t> count;    // collectives begun, of all parties
  std::atomic<uint64_t> ends_at;  // the round before which everybody stops; 0: not known yet
};

Meeting* open_meeting(const std::string& file) {
  int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, 4096) != 0) fail(kExitUnexpected, "cannot make %s", file.c_str());
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (shared == MAP_FAILED) fail(kExitUnexpected, "cannot map %s", file.c_str());
  close(fd);
  return static_cast<Meeting*>(shared);
}

// So many rounds may be launched ahead of the GPU; parties are never further apart.
constexpr uint64_t kAhead = 4;

// A context on that GPU, current, and a stream in it.
Workplace settle_on(int gpu) {
  CUcontext context = nullptr;
  check(cuda().cuDevicePrimaryCtxRetain(&context, gpu), "cuDevicePrimaryCtxRetain");
  check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
  Workplace place{};
  place.kernels = load_kernels();
  check(cuda().cuStreamCreate(&place.stream, 1), "cuStreamCreate");
  return place;
}

void take_part(const Options& options, Meeting& meeting, int gpu, bool leads) {
  const Workplace place = settle_on(gpu);
  CUdeviceptr scratch = 0;
  check(cuda().cuMemAlloc_v2(&scratch, 8), "cuMemAlloc");
  Block block(place, options.number("hold", 64u << 20), Allocation::kPlain);
  block.fill(static_cast<uint64_t>(gpu));

  const uint64_t parties = options.number("parties", 1);
  // Pauses, in which it is idle while others of its gang wait for it, and has more memory after each.
  uint64_t pauses = options.number("pauses", 0);
  std::vector<std::unique_ptr<Block>> grown;
  uint64_t round = 0;
  for (; meeting.ends_at == 0 || round < meeting.ends_at; ++round) {
    if (leads && meeting.ends_at == 0 && options.told_to_stop()) meeting.ends_at = round + 2 * kAhead;
    block.mix_slowly(round, 2'000'000);
    const uint64_t target = (round + 1) * parties;
    check(launch(place.kernels.meet, place.stream, block.address(), uint64_t{block.bytes() / 8}, reinterpret_cast<uint64_t>(&meeting.count),
                 target),
          "sim_meet");
    block.model_mix(target);
    if (round % kAhead == kAhead - 1) check(cuda().cuStreamSynchronize(place.stream), "cuStreamSynchronize");
    if (pauses > 0 && round % (2 * kAhead) == (gpu % 2 == 0 ? 1 : 2) * kAhead - 1) {
      --pauses;
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      grown.push_back(std::make_unique<Block>(place, options.number("grow", 4u << 20), Allocation::kPlain));
      grown.back()->fill(round);
    }
    if (round % 32 == 31) block.verify_checksum(scratch);
    if (round == 0) say("meeting");
  }
  block.verify_bytes();
  for (auto& more : grown) more->verify_bytes();
  grown.clear();
  std::printf("%" PRIu64 " rounds on GPU %d\n", round, gpu);
  check(cuda().cuDevicePrimaryCtxRelease_v2(gpu), "cuDevicePrimaryCtxRelease");
}

}  // namespace

// --gpus 0,1: a thread for each. --meeting FILE and --parties N: who meets whom. --leads 1: its first GPU's thread says when it ends.
// --pauses N --grow BYTES: so often it does nothing for a while, and allocates before it goes on.
void run_meet(const Options& options) {
  Meeting* meeting = open_meeting(options.text("meeting", ""));
  bool leads = options.number("leads", 1) != 0;
  std::vector<std::thread> threads;
  std::istringstream gpus(options.text("gpus", "0"));
  for (std::string gpu; std::getline(gpus, gpu, ',');) {
    threads.emplace_back([&options, meeting, number = std::stoi(gpu), leads] { take_part(options, *meeting, number, leads); });
    leads = false;
  }
  for (std::thread& thread : threads) thread.join();
}

// Uses two GPUs at first, then gives the first up (its context ends) and goes on with the second until it is told to stop.
void run_leave_gpu(const Options& options) {
  {
    const Workplace first = settle_on(0);
    Block block(first, options.number("hold", 64u << 20), Allocation::kPlain);
    block.fill(1);
    const Workplace second = settle_on(1);
    Block other(second, options.number("hold", 64u << 20), Allocation::kPlain);
    other.fill(2);
    say("both");
    uint64_t round = 0;
    for (; !options.told_to_stop() && round < 20; ++round) other.mix_slowly(round, 2'000'000);
    check(cuda().cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease");
    say("left");
    for (; !options.told_to_stop(); ++round) {
      other.mix_slowly(round, 2'000'000);
      if (round % 8 == 7) check(cuda().cuStreamSynchronize(second.stream), "cuStreamSynchronize");
    }
    other.verify_bytes();
    std::printf("%" PRIu64 " rounds\n", round);
  }
  check(cuda().cuDevicePrimaryCtxRelease_v2(1), "cuDevicePrimaryCtxRelease");
}

}  // namespace nvshare::e2e
