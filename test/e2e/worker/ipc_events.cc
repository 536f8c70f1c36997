// Work of two processes on the same memory, ordered by interprocess events alone: neither waits on the CPU for what the GPU does, only for
// the other's having submitted it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

#include "e2e/worker/block.h"
#include "e2e/worker/model.h"
#include "e2e/worker/modes.h"

namespace nvshare::e2e {
namespace {

constexpr uint64_t kSeed = 99;
constexpr unsigned kShared = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
constexpr uint64_t kSlow_ns = 6'000'000;

// In a file that both map.
struct Pair {
  CUipcMemHandle memory;
  uint64_t bytes;
  CUipcEventHandle events[2];          // of the leader's records, and of the other's
  std::atomic<uint64_t> submitted[2];  // rounds, of each
  std::atomic<uint64_t> ends_at;       // rounds; 0: not known yet
};

Pair* map_pair(const std::string& file, int flags) {
  const int fd = open(file.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  if ((flags & O_CREAT) != 0 && ftruncate(fd, sizeof(Pair)) != 0) fail(kExitUnexpected, "cannot make %s", file.c_str());
  void* at = mmap(nullptr, sizeof(Pair), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at == MAP_FAILED) fail(kExitUnexpected, "cannot map %s", file.c_str());
  return static_cast<Pair*>(at);
}

void expect(CUresult got, CUresult wanted, const char* what) {
  if (got != wanted) fail(kExitUnexpected, "%s gave %d instead of %d", what, got, wanted);
}

// What both do in each round, one after the other: the leader's part is an even round of the model, the other's an odd one.
struct Party {
  const Workplace& place;
  Pair& pair;
  int number;  // 0: the leader
  CUdeviceptr memory;
  CUevent mine, theirs;

  void take_turn(Block& ballast, uint64_t round) {
    if (number == 1 || round > 0) check(cuda().cuStreamWaitEvent(place.stream, theirs, 0), "cuStreamWaitEvent");
    // In some rounds slow work comes first, and the other's next part has none before it: without the wait it comes too early.
    if (round % 4 == 2 * static_cast<uint64_t>(number)) ballast.mix_slowly(round, kSlow_ns);
    check(launch(place.kernels.mix, place.stream, memory, pair.bytes / 8, 2 * round + static_cast<uint64_t>(number)), "sim_mix");
    check(cuda().cuEventRecord(mine, place.stream), "cuEventRecord");
    pair.submitted[number] = round + 1;
  }
  // The other has submitted as many, or will not.
  void await(uint64_t rounds) {
    while (pair.submitted[1 - number] < rounds && (pair.ends_at == 0 || pair.ends_at >= rounds)) usleep(200);
  }
};

}  // namespace

// --file FILE, --leads 1: makes and hands over the memory and both events, and says when to stop. --hand, --hold: bytes of the handed
// memory and of its own.
void run_ipc_ordered(const Options& options) {
  const bool leads = options.number("leads", 0) != 0;
  const std::string file = options.text("file", "");
  CUcontext context = nullptr;
  check(cuda().cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
  Workplace place{};
  place.kernels = load_kernels();
  check(cuda().cuStreamCreate(&place.stream, 1), "cuStreamCreate");
  Block ballast(place, options.number("hold", 30u << 20), Allocation::kPlain);
  ballast.fill(leads ? 1 : 2);

  CUdeviceptr memory = 0;
  CUevent events[2] = {};
  Pair* pair = nullptr;
  if (leads) {
    pair = map_pair(file + ".new", O_CREAT);
    pair->bytes = options.number("hand", 16u << 20);
    check(cuda().cuMemAlloc_v2(&memory, pair->bytes), "cuMemAlloc");
    check(launch(place.kernels.fill, place.stream, memory, pair->bytes / 8, kSeed), "sim_fill");
    check(cuda().cuIpcGetMemHandle(&pair->memory, memory), "cuIpcGetMemHandle");
    for (int i = 0; i < 2; ++i) {
      check(cuda().cuEventCreate(&events[i], kShared), "cuEventCreate");
      check(cuda().cuIpcGetEventHandle(&pair->events[i], events[i]), "cuIpcGetEventHandle");
    }
    CUevent own = nullptr;
    expect(cuda().cuIpcOpenEventHandle(&own, pair->events[0]), CUDA_ERROR_INVALID_CONTEXT, "opening an event of one's own");
    if (std::rename((file + ".new").c_str(), file.c_str()) != 0) fail(kExitUnexpected, "cannot make %s", file.c_str());
  } else {
    while ((pair = map_pair(file, 0)) == nullptr) usleep(1000);
    check(cuda().cuIpcOpenMemHandle_v2(&memory, pair->memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
    for (int i = 0; i < 2; ++i) check(cuda().cuIpcOpenEventHandle(&events[i], pair->events[i]), "cuIpcOpenEventHandle");
  }

  const int number = leads ? 0 : 1;
  Party party{place, *pair, number, memory, events[number], events[1 - number]};
  uint64_t round = 0;
  for (; pair->ends_at == 0 || round < pair->ends_at; ++round) {
    if (leads && pair->ends_at == 0 && options.told_to_stop()) pair->ends_at = round + 1;
    party.await(leads ? round : round + 1);
    if (pair->ends_at != 0 && round >= pair->ends_at) break;
    party.take_turn(ballast, round);
    if (round == 0) say("ordered");
  }
  // The last record is the other's.
  if (leads) {
    party.await(round);
    check(cuda().cuEventSynchronize(party.theirs), "cuEventSynchronize");
    expect(cuda().cuEventQuery(party.theirs), CUDA_SUCCESS, "cuEventQuery");
  } else {
    check(cuda().cuStreamSynchronize(place.stream), "cuStreamSynchronize");
  }
  std::vector<uint64_t> expected(pair->bytes / 8);
  std::vector<uint64_t> got(expected.size());
  model_fill(expected.data(), expected.size(), kSeed);
  for (uint64_t i = 0; i < 2 * round; ++i) model_mix(expected.data(), expected.size(), i);
  check(cuda().cuMemcpyDtoH_v2(got.data(), memory, got.size() * 8), "cuMemcpyDtoH");
  if (got != expected) fail(kExitWrongBytes, "after %" PRIu64 " rounds the shared bytes are not what they should be", round);
  ballast.verify_bytes();
  if (!leads) check(cuda().cuIpcCloseMemHandle(memory), "cuIpcCloseMemHandle");
  std::printf("%" PRIu64 " rounds\n", round);
}

}  // namespace nvshare::e2e
