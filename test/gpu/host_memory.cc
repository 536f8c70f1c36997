// Touches --bytes of host memory with --threads threads and gives it back. A virtual machine may be given its memory only when it is first
// used, slowly; doing that before a measurement keeps it out of the measurement.
#include <sys/mman.h>

#include <thread>

#include "program.h"

int main(int argc, char** argv) {
  const gputest::Options options(argc, argv);
  const uint64_t bytes = options.number("bytes", 1ull << 30);
  const uint64_t threads = std::max<uint64_t>(1, options.number("threads", 8));
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  const uint64_t begin = gputest::now_ns();
  std::vector<std::thread> workers;
  const uint64_t part = bytes / threads;
  for (uint64_t i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      volatile unsigned char* const here = static_cast<unsigned char*>(memory) + i * part;
      for (uint64_t offset = 0; offset < part; offset += 4096) {
        here[offset] = 1;
      }
    });
  }
  for (std::thread& each : workers) {
    each.join();
  }
  std::printf("{\"touched\": %llu, \"seconds\": %.2f}\n", static_cast<unsigned long long>(bytes), gputest::seconds_since(begin));
  return 0;
}
