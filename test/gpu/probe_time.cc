// What allocation, launching, mapping, pinning and copying cost on this machine, also while kernels run.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "probe.h"
#include "vmm.h"

namespace gputest {
namespace {

void print_statistics(const char* name, const std::vector<double>& values) {
  const Statistics s = statistics_of(values);
  std::printf("\"%s\": {\"median\": %.2f, \"lowest\": %.2f, \"highest\": %.2f}", name, s.median, s.lowest, s.highest);
}

// Runs kernels of about 100 us one after the other, each synchronised, in a thread of its own, and notes how long each takes seen from the
// host. A call of somebody else that stalls the GPU or the driver shows as a long one.
class Heartbeat {
 public:
  Heartbeat() {
    context_ = open_gpu();
    spin_ = kernel("sim_spin");
    thread_ = std::thread([this] { run(); });
    while (count_.load() < 50) {
      std::this_thread::yield();
    }
    begin();
  }
  ~Heartbeat() {
    stop_ = true;
    thread_.join();
  }
  void begin() {
    longest_us_ = 0;
    begun_ns_ = now_ns();
    count_ = 0;
  }
  double longest_us() const { return longest_us_.load(); }
  double beats_per_ms() const { return static_cast<double>(count_.load()) / (seconds_since(begun_ns_) * 1000); }

 private:
  void run() {
    driver().ctx_set_current(context_);
    CUstream stream = nullptr;
    require(driver().stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
    while (!stop_.load()) {
      const uint64_t begin = now_ns();
      launch_spin(spin_, 100'000, stream);
      require(driver().stream_synchronize(stream), "cuStreamSynchronize");
      const double micros = micros_since(begin);
      if (micros > longest_us_.load()) {
        longest_us_ = micros;
      }
      ++count_;
    }
  }

  CUcontext context_ = nullptr;
  CUfunction spin_ = nullptr;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<double> longest_us_{0};
  std::atomic<uint64_t> count_{0};
  uint64_t begun_ns_ = 0;
};

// Forks before CUDA is touched. The child beats until told to stop and prints its own line.
class OtherProcess {
 public:
  OtherProcess() {
    if (pipe(to_child_) != 0 || pipe(from_child_) != 0) {
      std::exit(3);
    }
    child_ = fork();
    if (child_ == 0) {
      close(to_child_[1]);
      close(from_child_[0]);
      char order = 0;
      Heartbeat beat;
      if (write(from_child_[1], "r", 1) != 1) {
        std::_Exit(3);
      }
      while (read(to_child_[0], &order, 1) == 1 && order != 'q') {
        if (order == 'b') {
          beat.begin();
        }
        const double figures[2] = {beat.longest_us(), beat.beats_per_ms()};
        if (write(from_child_[1], figures, sizeof figures) != sizeof figures) {
          std::_Exit(3);
        }
      }
      std::_Exit(0);
    }
    close(to_child_[0]);  // so that the end of either process ends the other's reading
    close(from_child_[1]);
    char ready = 0;
    if (read(from_child_[0], &ready, 1) != 1) {
      std::exit(3);
    }
  }
  ~OtherProcess() {
    if (write(to_child_[1], "q", 1) == 1) {
      waitpid(child_, nullptr, 0);
    }
  }
  std::pair<double, double> ask(char order) {
    double figures[2] = {0, 0};
    if (write(to_child_[1], &order, 1) != 1 || read(from_child_[0], figures, sizeof figures) != sizeof figures) {
      std::exit(3);
    }
    return {figures[0], figures[1]};
  }

 private:
  int to_child_[2];
  int from_child_[2];
  pid_t child_ = -1;
};

void time_chunks(size_t chunk, size_t total, const char* beside) {
  VmmRange range(total);
  std::vector<double> create, place, allow, detach, release;
  const auto timed = [](std::vector<double>& into, auto&& call) {
    const uint64_t begin = now_ns();
    call();
    into.push_back(micros_since(begin));
  };
  for (size_t offset = 0; offset < total; offset += chunk) {
    timed(create, [&] { range.create(offset, chunk); });
    timed(place, [&] { range.place(offset); });
    timed(allow, [&] { range.allow(offset, chunk); });
  }
  for (size_t offset = 0; offset < total; offset += chunk) {
    timed(detach, [&] { range.detach(offset, chunk); });
    timed(release, [&] { range.release(offset); });
  }
  for (size_t offset = 0; offset < total; offset += chunk) {
    range.create(offset, chunk);
    range.place(offset);
  }
  std::vector<double> allow_all;
  timed(allow_all, [&] { range.allow(0, total); });
  std::printf("{\"probe\": \"vmm_chunks\", \"beside\": \"%s\", \"chunk_mib\": %zu, \"total_mib\": %zu, \"us\": {", beside, chunk >> 20,
              total >> 20);
  print_statistics("create", create);
  std::printf(", ");
  print_statistics("map", place);
  std::printf(", ");
  print_statistics("set_access", allow);
  std::printf(", ");
  print_statistics("set_access_whole_range", allow_all);
  std::printf(", ");
  print_statistics("unmap", detach);
  std::printf(", ");
  print_statistics("release", release);
  std::printf("}}\n");
  std::fflush(stdout);
}

void touch(unsigned char* memory, size_t bytes, size_t step) {
  for (size_t i = 0; i < bytes; i += step) {
    static_cast<volatile unsigned char*>(memory)[i] = 1;
  }
}

// `threads` threads each touch their part of `bytes`, then register it in pieces of `piece`; milliseconds of both, wall time.
void time_pinning(size_t bytes, unsigned threads, size_t piece, bool huge, const char* beside) {
  CUcontext context = open_gpu();
  void* const raw = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    std::printf("{\"probe\": \"pinning\", \"error\": \"mmap of %zu MiB\"}\n", bytes >> 20);
    return;
  }
  unsigned char* const memory = static_cast<unsigned char*>(raw);
  madvise(raw, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  const size_t part = bytes / threads;
  piece = std::min(piece, part);
  std::atomic<int64_t> touch_us{0};
  std::atomic<int64_t> register_us{0};
  std::vector<std::thread> workers;
  const uint64_t begin = now_ns();
  for (unsigned i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      driver().ctx_set_current(context);
      for (size_t done = 0; done < part; done += piece) {
        unsigned char* const here = memory + i * part + done;
        const uint64_t touching = now_ns();
        touch(here, piece, 4096);
        const uint64_t registering = now_ns();
        require(driver().mem_host_register(here, piece, 0), "cuMemHostRegister");
        touch_us += static_cast<int64_t>((registering - touching) / 1000);
        register_us += static_cast<int64_t>((now_ns() - registering) / 1000);
      }
    });
  }
  for (std::thread& each : workers) {
    each.join();
  }
  const double wall = seconds_since(begin);
  const uint64_t unregistering = now_ns();
  for (size_t offset = 0; offset < part * threads; offset += piece) {
    require(driver().mem_host_unregister(memory + offset), "cuMemHostUnregister");
  }
  const double unregister = seconds_since(unregistering);
  munmap(raw, bytes);
  std::printf(
      "{\"probe\": \"pinning\", \"beside\": \"%s\", \"mib\": %zu, \"threads\": %u, \"piece_mib\": %zu, \"huge_pages\": %s, \"wall_ms\": "
      "%.0f, "
      "\"gb_per_s\": %.1f, \"touch_share\": %.2f, \"unregister_ms\": %.0f",
      beside, bytes >> 20, threads, piece >> 20, huge ? "true" : "false", wall * 1e3, static_cast<double>(bytes) / wall * 1e-9,
      static_cast<double>(touch_us.load()) / static_cast<double>(std::max<int64_t>(1, touch_us.load() + register_us.load())),
      unregister * 1e3);
}

double copy_rate(bool in, bool out, CUdeviceptr device, unsigned char* host, size_t bytes, size_t piece) {
  const Driver& d = driver();
  static CUstream streams[2] = {nullptr, nullptr};
  for (CUstream& each : streams) {
    if (each == nullptr) {
      require(d.stream_create(&each, kStreamNonBlocking), "cuStreamCreate");
    }
  }
  double best = 0;
  for (int repetition = 0; repetition < 3; ++repetition) {
    const uint64_t begin = now_ns();
    const size_t half = in && out ? bytes / 2 : bytes;
    for (size_t offset = 0; offset < half; offset += piece) {
      const size_t size = std::min(piece, half - offset);
      if (in) {
        require(d.memcpy_htod_async(device + offset, host + offset, size, streams[0]), "cuMemcpyHtoDAsync");
      }
      const size_t from = in && out ? half + offset : offset;
      if (out) {
        require(d.memcpy_dtoh_async(host + from, device + from, size, streams[1]), "cuMemcpyDtoHAsync");
      }
    }
    require(d.stream_synchronize(streams[0]), "cuStreamSynchronize");
    require(d.stream_synchronize(streams[1]), "cuStreamSynchronize");
    best = std::max(best, static_cast<double>(bytes) / seconds_since(begin) * 1e-9);
  }
  return best;
}

}  // namespace

void probe_alloc(const Options& options) {
  const Driver& d = driver();
  open_gpu();
  const size_t largest = options.number("largest", 8ull << 30);
  for (const size_t bytes : {size_t{1024}, size_t{4} << 20, size_t{256} << 20, largest}) {
    if (bytes > largest) continue;
    std::vector<double> allocate, free;
    const int repetitions = bytes < (64u << 20) ? static_cast<int>(options.number("allocations", 200)) : 10;
    for (int i = 0; i < repetitions; ++i) {
      CUdeviceptr pointer = 0;
      const uint64_t begin = now_ns();
      require(d.mem_alloc(&pointer, bytes), "cuMemAlloc");
      allocate.push_back(micros_since(begin));
      const uint64_t freeing = now_ns();
      require(d.mem_free(pointer), "cuMemFree");
      free.push_back(micros_since(freeing));
    }
    std::printf("{\"probe\": \"alloc\", \"bytes\": %zu, \"us\": {", bytes);
    print_statistics("alloc", allocate);
    std::printf(", ");
    print_statistics("free", free);
    std::printf("}}\n");
  }
}

void probe_launch(const Options& options) {
  open_gpu();
  const CUfunction empty = kernel("sim_noop");
  CUstream stream = nullptr;
  require(driver().stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
  const int launches = static_cast<int>(options.number("launches", 20'000));
  std::vector<double> nanoseconds;
  for (int batch = 0; batch < 12; ++batch) {
    const uint64_t begin = now_ns();
    for (int i = 0; i < launches; ++i) {
      require(driver().launch_kernel(empty, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
    }
    require(driver().stream_synchronize(stream), "cuStreamSynchronize");
    nanoseconds.push_back(static_cast<double>(now_ns() - begin) / launches);
  }
  std::printf("{\"probe\": \"launch\", ");
  print_statistics("ns_per_launch", nanoseconds);
  std::printf("}\n");
}

void probe_vmm_chunks(const Options& options) {
  const size_t total = options.number("vmm-bytes", 4ull << 30);
  {
    OtherProcess other;
    open_gpu();
    other.ask('b');
    usleep(200'000);
    const auto [quiet_us, quiet_rate] = other.ask('a');
    other.ask('b');
    time_chunks(64u << 20, total, "kernels of another process");
    const auto [busy_us, busy_rate] = other.ask('a');
    std::printf(
        "{\"probe\": \"vmm_chunks\", \"other_process\": {\"longest_us_quiet\": %.0f, \"longest_us_while_mapping\": %.0f, "
        "\"kernels_per_ms_quiet\": %.2f, \"kernels_per_ms_while_mapping\": %.2f}}\n",
        quiet_us, busy_us, quiet_rate, busy_rate);
  }
  for (const size_t chunk : {size_t{2} << 20, size_t{32} << 20, size_t{64} << 20, size_t{256} << 20}) {
    time_chunks(chunk, total, "nothing");
  }
  Heartbeat beat;
  usleep(200'000);
  const double quiet_us = beat.longest_us();
  const double quiet_rate = beat.beats_per_ms();
  beat.begin();
  time_chunks(64u << 20, total, "own kernels");
  std::printf(
      "{\"probe\": \"vmm_chunks\", \"own_kernels\": {\"longest_us_quiet\": %.0f, \"longest_us_while_mapping\": %.0f, "
      "\"kernels_per_ms_quiet\": "
      "%.2f, \"kernels_per_ms_while_mapping\": %.2f}}\n",
      quiet_us, beat.longest_us(), quiet_rate, beat.beats_per_ms());
}

void probe_pinning(const Options& options) {
  const size_t bytes = options.number("pin-bytes", 8ull << 30);
  open_gpu();
  // The first touch of a virtual machine's memory may be slow in itself; it is not what this measures.
  const uint64_t begin = now_ns();
  void* warm = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  touch(static_cast<unsigned char*>(warm), bytes, 4096);
  munmap(warm, bytes);
  std::printf("{\"probe\": \"pinning\", \"first_touch_one_thread_s\": %.2f, \"mib\": %zu}\n", seconds_since(begin), bytes >> 20);
  for (const unsigned threads : {1u, 4u, 8u, 16u}) {
    time_pinning(bytes, threads, bytes, true, "nothing");
    std::printf("}\n");
    std::fflush(stdout);
  }
  for (const size_t piece : {size_t{64} << 20, size_t{256} << 20}) {
    time_pinning(bytes, 8, piece, true, "nothing");
    std::printf("}\n");
  }
  time_pinning(bytes, 8, bytes, false, "nothing");
  std::printf("}\n");
  std::fflush(stdout);
  Heartbeat beat;
  for (const size_t piece : {bytes, size_t{64} << 20}) {
    usleep(200'000);
    const double quiet_us = beat.longest_us();
    beat.begin();
    time_pinning(bytes, 8, piece, true, "own kernels");
    std::printf(", \"kernel_longest_us_quiet\": %.0f, \"kernel_longest_us_while_pinning\": %.0f, \"kernels_per_ms\": %.2f}\n", quiet_us,
                beat.longest_us(), beat.beats_per_ms());
    beat.begin();
  }
  const uint64_t allocating = now_ns();
  void* host = nullptr;
  require(driver().mem_host_alloc(&host, bytes, 0), "cuMemHostAlloc");
  std::printf("{\"probe\": \"pinning\", \"cuMemHostAlloc_ms\": %.0f, \"mib\": %zu}\n", seconds_since(allocating) * 1e3, bytes >> 20);
  driver().mem_free_host(host);
}

void probe_copies(const Options& options) {
  const size_t bytes = options.number("copy-bytes", 2ull << 30);
  const Driver& d = driver();
  open_gpu();
  CUdeviceptr device = 0;
  require(d.mem_alloc(&device, bytes), "cuMemAlloc");
  void* host = nullptr;
  require(d.mem_host_alloc(&host, bytes, 0), "cuMemHostAlloc");
  unsigned char* const memory = static_cast<unsigned char*>(host);
  touch(memory, bytes, 4096);
  for (const size_t piece : {size_t{2} << 20, size_t{16} << 20, size_t{64} << 20, bytes}) {
    std::printf("{\"probe\": \"copies\", \"piece_mib\": %zu, \"in_gb_per_s\": %.1f, \"out_gb_per_s\": %.1f, \"both_gb_per_s\": %.1f}\n",
                piece >> 20, copy_rate(true, false, device, memory, bytes, piece), copy_rate(false, true, device, memory, bytes, piece),
                copy_rate(true, true, device, memory, bytes, piece));
  }
  d.mem_free_host(host);
  d.mem_free(device);
}

}  // namespace gputest
