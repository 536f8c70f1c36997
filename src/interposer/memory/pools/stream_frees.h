// Memory that the program freed in stream order, or while something captured, and that the GPU may not have passed yet. What is freed on a
// stream may be reused by a later allocation on the same stream at once, by others once the GPU has passed the free.
//
// Thread-safe. Locks the mutex of Blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/memory/blocks/freed_blocks.h"

namespace nvshare::interposer {

class Device;

class StreamFrees {
 public:
  StreamFrees(Device& device, Blocks& blocks, FreedBlocks& freed) : device_(device), blocks_(blocks), freed_(freed) {}

  struct Free {
    cuda::CUdeviceptr address;
    size_t capacity;        // what a reuse may ask for at most
    cuda::CUstream stream;  // with `thread` and its context, where the free stands
    uint64_t thread;        // of a per-thread default stream, else 0
    cuda::CUcontext stream_context;
    cuda::CUevent event;  // null: unknown, wait for the whole context
    cuda::CUcontext context;
    cuda::CUcontext green = nullptr;  // the stream is one of that green context's, with which its event ends
    bool reusable = true;             // by a later allocation on the same stream
    bool at_once = false;             // by cuMemFree
    uint64_t number = 0;              // in the order of frees; add() sets it
  };
  // False: it is there already (freed twice).
  bool add(const Free& pending);
  // Where an allocation of so many bytes in that stream may lie, among what was freed there before it; 0: nowhere.
  cuda::CUdeviceptr reuse(size_t bytes, cuda::CUstream stream, uint64_t thread, cuda::CUcontext context);
  // What begins there was freed: in stream order, and the GPU has passed that, or during a capture. The program has it no more.
  bool is_over(const AllocationRange& range);
  // It is about to be destroyed, and its handle may name another stream soon.
  void stream_leaves(cuda::CUstream stream);

  // Gives back what the GPU has passed, by its events. Not while something captures. Nothing is waited for: the GPU may wait for the
  // calling thread, for good.
  void collect() { pass(false); }
  // The same of what the GPU passes within that time. What has no event another thread waits for (settle), no longer either.
  void collect_within(int64_t patience_ns);
  // For the swap engine, whose thread has no context: all of it. The GPU has no work left, so nothing is waited for.
  void collect_done();
  // What was freed without an event, if there is any, is given back by who waits for its context anyway (null: for all of the GPU's):
  // what begins_wait() said before that wait.
  uint64_t begins_wait() { return deferred_.load(std::memory_order_relaxed) > 0 ? last_number() : 0; }
  void waited(cuda::CUcontext context, uint64_t until);
  // After one was added: of many, and of twice as many and so on, what the GPU has passed is given back. Nothing is waited for: the GPU may
  // wait for the thread that frees.
  void look_if_many();

  // That green context is about to be destroyed. Its frees are looked for as long as that; then no event tells of them any more.
  void green_leaves(cuda::CUcontext green, int64_t patience_ns);
  // The driver has destroyed that context. Returns what is passed by that, and lives on.
  std::vector<cuda::CUdeviceptr> context_gone(const Blocks& blocks, cuda::CUcontext context) REQUIRES(blocks.mutex);

 private:
  // Gives back what the GPU has passed. `nothing_runs`: on this GPU, so that frees without an event are passed, too, unless they wait for a
  // stream of another one.
  void pass(bool nothing_runs);
  void wait_here();  // for what has no event, where no other thread can
  uint64_t last_number();

  Device& device_;
  Blocks& blocks_;
  FreedBlocks& freed_;
  std::vector<Free> frees_ GUARDED_BY(blocks_.mutex);
  size_t looked_at_ GUARDED_BY(blocks_.mutex) = 0;  // how many were left of many
  uint64_t last_ GUARDED_BY(blocks_.mutex) = 0;     // number
  std::atomic<uint32_t> deferred_{0};               // of them without an event
};

// Earlier GPU work on memory of that context (null: of the device) is done on return. False: something captures.
bool wait_before_free(Device& device, cuda::CUcontext context, cuda::CUresult* result);

}  // namespace nvshare::interposer
