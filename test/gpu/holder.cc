// Takes GPU memory by plain cuMemAlloc until only --leave bytes are free, prints one line, and holds it until its standard input ends.
#include <unistd.h>

#include "program.h"

int main(int argc, char** argv) {
  using namespace gputest;
  const Options options(argc, argv);
  const uint64_t leave = options.number("leave", 40ull << 30);
  const Driver& d = driver();
  open_gpu();
  uint64_t held = 0;
  size_t free = 0;
  size_t total = 0;
  for (const uint64_t block : {uint64_t{1} << 30, uint64_t{64} << 20, uint64_t{2} << 20}) {
    for (;;) {
      require(d.mem_get_info(&free, &total), "cuMemGetInfo");
      CUdeviceptr pointer = 0;
      if (free < leave + block || d.mem_alloc(&pointer, block) != kSuccess) {
        break;
      }
      require(d.memset_d8_async(pointer, 0x5a, block, nullptr), "cuMemsetD8Async");
      held += block;
    }
  }
  require(d.ctx_synchronize(), "cuCtxSynchronize");
  std::printf("{\"event\": \"holding\", \"bytes\": %llu, \"free\": %zu, \"total\": %zu}\n", static_cast<unsigned long long>(held), free,
              total);
  std::fflush(stdout);
  char byte = 0;
  while (read(0, &byte, 1) > 0) {
  }
  return 0;
}
