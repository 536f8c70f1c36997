// The kernels of the test programs, for a real GPU; names, parameters and results as test/simgpu/kernels.h defines them for the stand-in
// (but sim_checksum adds to what *sum holds: clear it first). `make_kernels_ptx.sh` turns this file into kernels_ptx.h, which is checked
// in, so that building needs no nvcc. `probe --only kernels` compares both with the CPU.
#include <cstdint>

__device__ __forceinline__ uint64_t scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  return z ^ (z >> 27);
}

__device__ __forceinline__ uint64_t first() { return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ uint64_t stride() { return static_cast<uint64_t>(gridDim.x) * blockDim.x; }

extern "C" __global__ void sim_noop() {}

extern "C" __global__ void sim_fill(uint64_t* data, uint64_t words, uint64_t seed) {
  for (uint64_t i = first(); i < words; i += stride()) data[i] = scramble(seed * 0x9e3779b97f4a7c15ull + i);
}

extern "C" __global__ void sim_mix(uint64_t* data, uint64_t words, uint64_t round) {
  for (uint64_t i = first(); i < words; i += stride()) data[i] = scramble(data[i] + (round + 1) * 0x9e3779b97f4a7c15ull);
}

extern "C" __global__ void sim_add(uint64_t* data, const uint64_t* other, uint64_t words) {
  for (uint64_t i = first(); i < words; i += stride()) data[i] += other[i];
}

extern "C" __global__ void sim_checksum(const uint64_t* data, uint64_t words, unsigned long long* sum) {
  unsigned long long local = 0;
  for (uint64_t i = first(); i < words; i += stride()) local += scramble(data[i] ^ (i * 0x94d049bb133111ebull + 1));
  for (int lane = 16; lane > 0; lane /= 2) local += __shfl_down_sync(0xffffffffu, local, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, local);
}

// Keeps the GPU busy for about `nanoseconds`.
extern "C" __global__ void sim_spin(uint64_t nanoseconds) {
  uint64_t begin;
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

// The same amount of work each time, whoever else uses the GPU meanwhile. `out` is never written, but the compiler cannot know that.
extern "C" __global__ void sim_work(uint64_t rounds, uint64_t* out) {
  uint64_t value = first() + 1;
  for (uint64_t i = 0; i < rounds; ++i) value = scramble(value + i);
  if (value == 0x0123456789abcdefull) *out = value;
}
