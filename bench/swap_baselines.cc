// What moving --bytes off the GPU and back costs in the ways that nvshare is compared with. One --way a process:
//   pinned      plain copies from and to pinned host memory, each direction alone and both at once
//   managed     demand paging: managed memory touched by a kernel, prefetched, evicted. Never more than the card has free
//   checkpoint  cuCheckpointProcess* of a child process that holds --bytes
// Prints JSON lines, GB/s with GB = 1e9 bytes.
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/program.h"

namespace {

using namespace gputest;

double gigabytes_per_second(uint64_t bytes, double seconds) { return static_cast<double>(bytes) / seconds * 1e-9; }

// One timed copy of `bytes` in pieces, each direction on a stream of its own.
double copy(CUdeviceptr device_in, CUdeviceptr device_out, unsigned char* host, uint64_t bytes, bool in, bool out, CUstream* streams) {
  constexpr uint64_t kPiece = 64u << 20;
  const uint64_t begin = now_ns();
  for (uint64_t offset = 0; offset < bytes; offset += kPiece) {
    const size_t size = static_cast<size_t>(std::min(kPiece, bytes - offset));
    if (in) {
      require(driver().memcpy_htod_async(device_in + offset, host + offset, size, streams[0]), "cuMemcpyHtoDAsync");
    }
    if (out) {
      require(driver().memcpy_dtoh_async(host + bytes + offset, device_out + offset, size, streams[1]), "cuMemcpyDtoHAsync");
    }
  }
  require(driver().stream_synchronize(streams[0]), "cuStreamSynchronize");
  require(driver().stream_synchronize(streams[1]), "cuStreamSynchronize");
  return seconds_since(begin);
}

int run_pinned(uint64_t bytes) {
  open_gpu();
  const uint64_t half = std::min<uint64_t>(bytes / 2, 4ull << 30) / 8 * 8;  // that much each way tells the link's speed
  CUdeviceptr device = 0;
  void* host = nullptr;
  require(driver().mem_alloc(&device, 2 * half), "cuMemAlloc");
  require(driver().mem_host_alloc(&host, 2 * half, 0), "cuMemHostAlloc");
  std::memset(host, 1, 2 * half);
  CUstream streams[2] = {nullptr, nullptr};
  for (CUstream& each : streams) {
    require(driver().stream_create(&each, kStreamNonBlocking), "cuStreamCreate");
  }
  std::vector<double> in, out, both;
  unsigned char* const memory = static_cast<unsigned char*>(host);
  for (int i = 0; i < 5; ++i) {
    in.push_back(gigabytes_per_second(half, copy(device, device + half, memory, half, true, false, streams)));
    out.push_back(gigabytes_per_second(half, copy(device, device + half, memory, half, false, true, streams)));
    both.push_back(gigabytes_per_second(2 * half, copy(device, device + half, memory, half, true, true, streams)));
  }
  std::printf("{\"way\": \"pinned\", \"bytes_each_way\": %llu, \"in_gb_per_s\": %.2f, \"out_gb_per_s\": %.2f, \"both_gb_per_s\": %.2f}\n",
              static_cast<unsigned long long>(half), statistics_of(in).median, statistics_of(out).median, statistics_of(both).median);
  return 0;
}

int run_managed(uint64_t bytes) {
  open_gpu();
  const Driver& d = driver();
  size_t free = 0;
  size_t total = 0;
  require(d.mem_get_info(&free, &total), "cuMemGetInfo");
  if (d.mem_alloc_managed == nullptr || d.mem_prefetch == nullptr || bytes + (2ull << 30) > free) {
    std::printf("{\"way\": \"managed\", \"skipped\": \"needs prefetching and %llu bytes free beside 2 GiB\"}\n",
                static_cast<unsigned long long>(bytes));
    return 0;
  }
  const CUfunction mix = kernel("sim_mix");
  CUdeviceptr data = 0;
  require(d.mem_alloc_managed(&data, bytes, 1), "cuMemAllocManaged");
  std::memset(reinterpret_cast<void*>(data), 1, bytes);
  const auto timed = [&](const char* what, auto&& call) {
    const uint64_t begin = now_ns();
    call();
    require(d.ctx_synchronize(), "cuCtxSynchronize");
    std::printf("{\"way\": \"managed\", \"step\": \"%s\", \"gb_per_s\": %.2f}\n", what, gigabytes_per_second(bytes, seconds_since(begin)));
    std::fflush(stdout);
  };
  const MemLocation device{1, 0};
  const MemLocation host{2, 0};
  const auto touch = [&] { launch(mix, bytes / 8, nullptr, data, bytes / 8, uint64_t{7}); };
  timed("fault in by touching", touch);
  timed("evict, first time", [&] { require(d.mem_prefetch(data, bytes, host, 0, nullptr), "cuMemPrefetchAsync"); });
  timed("fault in by touching, again", touch);
  timed("evict, again", [&] { require(d.mem_prefetch(data, bytes, host, 0, nullptr), "cuMemPrefetchAsync"); });
  timed("prefetch in", [&] { require(d.mem_prefetch(data, bytes, device, 0, nullptr), "cuMemPrefetchAsync"); });
  require(d.mem_free(data), "cuMemFree");
  return 0;
}

// The child holds memory and waits; it touches CUDA only after the fork.
int hold_for_checkpoint(uint64_t bytes, int ready, int release) {
  open_gpu();
  CUdeviceptr data = 0;
  require(driver().mem_alloc(&data, bytes), "cuMemAlloc");
  launch(kernel("sim_fill"), bytes / 8, nullptr, data, bytes / 8, uint64_t{1});
  require(driver().ctx_synchronize(), "cuCtxSynchronize");
  char byte = 'r';
  const bool told = write(ready, &byte, 1) == 1;
  return told && read(release, &byte, 1) >= 0 ? 0 : 1;
}

int run_checkpoint(uint64_t bytes) {
  int ready[2];
  int release[2];
  if (pipe(ready) != 0 || pipe(release) != 0) {
    return 3;
  }
  const pid_t child = fork();
  if (child == 0) {
    close(ready[0]);
    close(release[1]);
    std::_Exit(hold_for_checkpoint(bytes, ready[1], release[0]));
  }
  close(ready[1]);
  char byte = 0;
  if (read(ready[0], &byte, 1) != 1) {
    return 3;
  }
  const Driver& d = driver();
  if (d.checkpoint_lock == nullptr) {
    std::printf("{\"way\": \"checkpoint\", \"skipped\": \"this driver has no cuCheckpointProcess*\"}\n");
  } else {
    require(d.init(0), "cuInit");
    CheckpointLockArgs lock{};
    lock.timeout_ms = 10'000;
    const uint64_t begin = now_ns();
    require(d.checkpoint_lock(child, &lock), "cuCheckpointProcessLock");
    require(d.checkpoint_checkpoint(child, nullptr), "cuCheckpointProcessCheckpoint");
    const double out = seconds_since(begin);
    const uint64_t restoring = now_ns();
    require(d.checkpoint_restore(child, nullptr), "cuCheckpointProcessRestore");
    require(d.checkpoint_unlock(child, nullptr), "cuCheckpointProcessUnlock");
    const double in = seconds_since(restoring);
    std::printf("{\"way\": \"checkpoint\", \"out_s\": %.3f, \"out_gb_per_s\": %.2f, \"in_s\": %.3f, \"in_gb_per_s\": %.2f}\n", out,
                gigabytes_per_second(bytes, out), in, gigabytes_per_second(bytes, in));
  }
  close(release[1]);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options(argc, argv);
  const uint64_t bytes = options.number("bytes", 8ull << 30);
  const std::string way = options.text("way", "pinned");
  if (way == "pinned") {
    return run_pinned(bytes);
  }
  if (way == "managed") {
    return run_managed(bytes);
  }
  if (way == "checkpoint") {
    return run_checkpoint(bytes);
  }
  std::fprintf(stderr, "--way is pinned, managed or checkpoint\n");
  return 2;
}
