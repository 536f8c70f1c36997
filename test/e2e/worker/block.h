// A block of GPU memory and what must be in it. Every operation is done twice: by the GPU, and on the CPU in `expected`; verify() compares
// every byte, by a checksum that the GPU computes or by reading all of it back. Not thread-safe; several threads use blocks of their own.
#pragma once

#include <cstdint>
#include <random>

#include "e2e/worker/cuda.h"
#include "e2e/worker/host_buffer.h"

namespace nvshare::e2e {

enum class Allocation { kPlain, kPitch, kAsync };

// Where a thread works: a context that is current, a stream, and the kernels of that context.
struct Workplace {
  CUstream stream;
  Kernels kernels;
};

class Block {
 public:
  // `bytes` >= 1. For kPitch the height is chosen so that the rows need about that much.
  Block(const Workplace& place, size_t bytes, Allocation how);
  Block(Block&&) noexcept;
  Block& operator=(Block&&) = delete;
  ~Block();  // frees nothing: see free()

  void fill(uint64_t seed);
  void mix(uint64_t round);
  void mix_slowly(uint64_t round, uint64_t duration_ns);
  void add(const Block& other);                   // word by word, as far as both go
  void copy_from(const Block& other);             // as far as both go
  void write_from_host(std::mt19937_64& random);  // some part of it
  void set_bytes(unsigned char value);            // all of it

  void verify_checksum(CUdeviceptr scratch) const;  // `scratch`: 8 bytes of GPU memory
  void verify_bytes() const;
  void free();  // in stream order if it was allocated so

  size_t bytes() const { return bytes_; }
  CUdeviceptr address() const { return address_; }
  uint64_t checksum() const;  // of what must be in it

  // The CPU's part alone, for work that the GPU gets in another way (a graph's replay).
  void model_mix(uint64_t round);
  void model_add(const Block& other);

 private:
  size_t words() const { return bytes_ / 8; }
  uint64_t* word() { return reinterpret_cast<uint64_t*>(expected_.data()); }
  const uint64_t* word() const { return reinterpret_cast<const uint64_t*>(expected_.data()); }
  void upload_tail();
  void wait() const;

  size_t allocate(const Workplace& place, size_t bytes, Allocation how);  // how many bytes it has

  const Workplace* place_;
  CUdeviceptr address_ = 0;
  size_t bytes_;
  Allocation how_;
  HostBuffer expected_;  // bytes_
};

}  // namespace nvshare::e2e
