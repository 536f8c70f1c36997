// Finds out which chunks are still what they were when they came in, so that they leave without a copy: a kernel of ours hashes them on the
// GPU, some seventy times faster than they could be copied (chunk_hash.h). For the swap engine, when the GPU has no work of the program's
// left and its gate is closed; nothing of it runs while the program does.
//
// Whatever is in doubt is copied. The kernel is believed after it gave the CPU's answer in this context. Of the chunks that it says are
// unchanged some are copied and compared all the same, before anything leaves: the first, of the next ones fewer and fewer, and one in a
// thousand for good. A difference ends it for this process.
// Not thread-safe but for configure, node_says and on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/memory.h"
#include "interposer/swap/copies/chunk_hash.h"

namespace nvshare::interposer {

class Unchanged {
 public:
  explicit Unchanged(Device& device) : device_(device) {}

  void configure();         // reads NVSHARE_SKIP_UNCHANGED: what the program's own environment says comes before the node's setting
  void node_says(bool on);  // from the scheduler
  bool on() const { return !ended_.load(std::memory_order_relaxed) && wanted_.load(std::memory_order_relaxed); }

  struct Finding {
    bool hashed = false;
    bool same = false;  // its kept copy is its host copy now
    ChunkHash hash;
  };
  // One finding for each pinned piece; none at all where nothing can be said. The context is current, `stream` is the swap engine's.
  std::vector<Finding> look(const std::vector<Piece>& pieces, cuda::CUstream stream);
  // Once after it was found wrong.
  bool take_mistake() { return mistake_.exchange(false, std::memory_order_relaxed); }

  // The context is about to be destroyed, and is current or not: what is in it goes with it.
  void drop();

 private:
  struct Shared;  // pinned host memory, which the kernel reads and writes

  bool prepare(cuda::CUstream stream);
  bool passes_self_test(cuda::CUstream stream);
  bool load(cuda::CUstream stream);
  cuda::CUresult hash_units(size_t count, cuda::CUstream stream);
  bool hash_all(const std::vector<Piece>& pieces, std::vector<Finding>* findings, cuda::CUstream stream);
  bool is_picked();
  // Whether the chunk's bytes are those of its host copy, all of them. False too when that could not be found out.
  bool compare(const Piece& piece, cuda::CUstream stream, cuda::CUresult* result);
  void verify(const std::vector<Piece>& pieces, std::vector<Finding>* findings, cuda::CUstream stream);
  void end(const char* why, int error);

  enum class Wish : uint8_t { kNone, kOn, kOff };

  Device& device_;
  Wish wish_ = Wish::kNone;
  std::atomic<bool> wanted_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> mistake_{false};
  cuda::CUmodule module_ = nullptr;
  cuda::CUfunction kernel_ = nullptr;
  Shared* shared_ = nullptr;
  uint64_t claims_ = 0;  // chunks that it called unchanged in this context
  uint64_t random_ = 0;
  int memory_short_ = 0;  // times in a row
};

}  // namespace nvshare::interposer
