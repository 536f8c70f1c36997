// The kernel that tells whether a chunk of GPU memory changed: a hash of 128 bits for each unit of 512 KiB. What it computes is written
// down, and explained, in chunk_hash.h; chunk_hash_ptx.h is made from this file by make_chunk_hash_ptx.sh and checked in, since building
// needs no CUDA toolkit.
//
// One block of 256 threads a unit; each thread takes every 256th pair of words, so that neighbours read next to each other.
typedef unsigned long long u64;
typedef unsigned int u32;

#ifdef __clang__  // without the toolkit's headers
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define THREAD (__nvvm_read_ptx_sreg_tid_x())
#define BLOCK (__nvvm_read_ptx_sreg_ctaid_x())
#else
#define THREAD (threadIdx.x)
#define BLOCK (blockIdx.x)
#endif

struct alignas(16) Pair {
  u64 x, y;
};

static __device__ __forceinline__ u64 rotate(u64 value, int bits) { return value << bits | value >> (64 - bits); }

static __device__ __forceinline__ u64 scramble(u64 value) {
  value = (value ^ value >> 32) * 0xd6e8feb86659fd93ull;
  value = (value ^ value >> 29) * 0xa0761d6478bd642full;
  return value ^ value >> 32;
}

extern "C" __global__ void nvshare_chunk_hash(const u64* units, Pair* hashes, u64 count) {
  if (BLOCK >= count) return;
  constexpr u32 kThreads = 256, kSteps = 128, kAtOnce = 8;
  __shared__ u64 first[kThreads], second[kThreads];
  const u32 thread = THREAD;
  const Pair* from = reinterpret_cast<const Pair*>(units[BLOCK]) + thread;
  u64 a = 0x243f6a8885a308d3ull + thread * 0x9e3779b97f4a7c15ull;
  u64 b = 0x13198a2e03707344ull - thread * 0xc2b2ae3d27d4eb4full;
  for (u32 step = 0; step < kSteps; step += kAtOnce) {
    Pair pairs[kAtOnce];  // all on their way before the first is needed
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) pairs[i] = from[(step + i) * kThreads];
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) {
      a = rotate(a ^ pairs[i].x, 29) * 0xbf58476d1ce4e5b9ull;
      a = rotate(a ^ pairs[i].y, 29) * 0xbf58476d1ce4e5b9ull;
      b = rotate(b + pairs[i].y, 37) * 0x94d049bb133111ebull;
      b = rotate(b + pairs[i].x, 37) * 0x94d049bb133111ebull;
    }
  }
  first[thread] = scramble(a);
  second[thread] = scramble(b);
  for (u32 half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) {
      first[thread] += first[thread + half];
      second[thread] += second[thread + half];
    }
  }
  if (thread == 0) hashes[BLOCK] = Pair{first[0], second[0]};
}
