// Whether the kernels compute what kernels.cu says: the same here and on the stand-in GPU. Checked against the CPU on a small block.
#include <cinttypes>

#include "probe.h"

namespace gputest {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

uint64_t scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 27);
}

}  // namespace

void probe_kernels(const Options&) {
  const Driver& d = driver();
  open_gpu();
  constexpr uint64_t kWords = 100'003;
  constexpr uint64_t kOtherWords = 777;
  std::vector<uint64_t> data(kWords), other(kOtherWords);
  for (uint64_t i = 0; i < kWords; ++i) {
    data[i] = scramble(11 * kGolden + i);
  }
  for (uint64_t i = 0; i < kOtherWords; ++i) {
    other[i] = scramble(22 * kGolden + i);
  }
  uint64_t expected = 0;
  for (uint64_t i = 0; i < kWords; ++i) {
    data[i] = scramble(data[i] + (i < kOtherWords ? other[i] : 0) + 34 * kGolden);
    expected += scramble(data[i] ^ (i * 0x94d049bb133111ebu + 1));
  }
  CUdeviceptr on_gpu = 0;
  CUdeviceptr other_on_gpu = 0;
  CUdeviceptr sum = 0;
  require(d.mem_alloc(&on_gpu, kWords * 8), "cuMemAlloc");
  require(d.mem_alloc(&other_on_gpu, kOtherWords * 8), "cuMemAlloc");
  require(d.mem_alloc(&sum, 8), "cuMemAlloc");
  require(d.memset_d8_async(sum, 0, 8, nullptr), "cuMemsetD8Async");
  launch(kernel("sim_fill"), kWords, nullptr, on_gpu, kWords, uint64_t{11});
  launch(kernel("sim_fill"), kOtherWords, nullptr, other_on_gpu, kOtherWords, uint64_t{22});
  launch(kernel("sim_add"), kOtherWords, nullptr, on_gpu, other_on_gpu, kOtherWords);
  launch(kernel("sim_mix"), kWords, nullptr, on_gpu, kWords, uint64_t{33});
  launch(kernel("sim_checksum"), kWords, nullptr, on_gpu, kWords, sum);
  uint64_t found = 0;
  std::vector<uint64_t> back(kWords);
  require(d.memcpy_dtoh_async(&found, sum, 8, nullptr), "cuMemcpyDtoHAsync");
  require(d.memcpy_dtoh_async(back.data(), on_gpu, kWords * 8, nullptr), "cuMemcpyDtoHAsync");
  require(d.ctx_synchronize(), "cuCtxSynchronize");
  const bool same = back == data && found == expected;
  std::printf("{\"probe\": \"kernels\", \"same\": %s, \"expected\": \"%016" PRIx64 "\", \"found\": \"%016" PRIx64 "\"}\n",
              same ? "true" : "false", expected, found);
  if (!same) {
    std::fflush(stdout);
    std::_Exit(1);
  }
}

}  // namespace gputest
