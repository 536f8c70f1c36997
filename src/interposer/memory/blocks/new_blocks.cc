#include "interposer/memory/blocks/new_blocks.h"

#include <stdint.h>
#include <stdio.h>

#include <utility>

#include "base/amount.h"
#include "interposer/gate/gate.h"
#include "interposer/link/turns.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

using cuda::CUresult;

namespace {

constexpr int64_t kLockPause_ns = 100'000;
constexpr int64_t kTellAgain_ns = 10'000'000'000;  // between two warnings of them
constexpr int64_t kSettling_ns = 2'000'000;
constexpr int64_t kOutOfMemoryPatience_ns = 2'000'000'000;  // a neighbour's memory may take a moment to come free

// Threads without a mark pass the gate unseen.
void leave(Gate& gate) {
  if (Mark* mark = Gate::mark()) gate.leave(mark);
}

}  // namespace

CUresult NewBlocks::map(Block& block) {
  for (uint32_t i = 0; i < block.chunk_count; ++i) {
    CUresult result = backing_.map(block, i);
    for (int64_t start = now_ns(); result == cuda::CUDA_ERROR_OUT_OF_MEMORY && now_ns() - start < kOutOfMemoryPatience_ns;) {
      freed_.trim();
      sleep_ns(2'000'000);
      result = backing_.map(block, i);
    }
    if (result != cuda::CUDA_SUCCESS) {
      for (uint32_t done = 0; done < i; ++done) {
        backing_.unmap(block, done);
        block.chunks[done].state = ChunkState::kFresh;
      }
      return result;
    }
    block.chunks[i].state = ChunkState::kResident;
  }
  return cuda::CUDA_SUCCESS;
}

// True: inside the gate, and whether an allocation gets memory now or in the next turn is settled. False: it waited, and the gate is to be
// looked at anew.
bool NewBlocks::enter_gate(bool needs_lock) {
  const TurnSigns& signs = device_.turns().signs;
  Mark* mark = Gate::mark();
  if (needs_lock) device_.process().wait_for_gate();
  const uint32_t flags = mark != nullptr ? device_.process().gate.enter(mark) : device_.process().gate.flags();
  if ((flags & device_.gate_bit()) == 0 || device_.process().ending()) return true;
  if (signs.draining()) {
    leave(device_.process().gate);
    device_.process().gate.begin_waiting();
    device_.process().gate.wait_change(flags, kSettling_ns);
    device_.process().gate.end_waiting();
    return false;
  }
  if (signs.gang_runs()) {
    leave(device_.process().gate);
    device_.process().wait_for_gate(&signs);
    return false;
  }
  return true;
}

// Takes a block that is kept for reuse, or counts a new one. False: there is no room for it.
bool NewBlocks::reserve(const BlockOrder& order, bool needs_lock, Attempt* made) {
  made->block = freed_.take(blocks_, order);
  if (made->block != nullptr) return true;
  // What was seen of the gate may be stale: a turn that has begun meanwhile counts, and no drain gets past this thread.
  made->now = blocks_.running;
  bool room = made->now ? use_.resident() + order.bytes <= device_.turns().signs.budget()
                        : use_.allocated() + order.bytes <= device_.limit().ceiling();
  if (needs_lock && !made->now) room = false;
  if (!room) return false;
  use_.add_allocated(order.bytes);
  if (made->now) use_.add_resident(order.bytes);
  return true;
}

bool NewBlocks::attempt(const BlockOrder& order, bool needs_lock, Attempt* made) {
  Lock lock(blocks_.mutex);
  if (residency_.all_stays() != needs_lock) return false;
  if (!reserve(order, needs_lock, made) || made->block != nullptr) return true;
  lock.unlock();
  Block* block = nullptr;
  made->result = backing_.make(order, &block);
  if (made->result == cuda::CUDA_SUCCESS && made->now) {
    made->result = map(*block);
    if (made->result != cuda::CUDA_SUCCESS) {
      backing_.dispose(block);
      block = nullptr;
    }
  }
  lock.lock();
  // Too late for the swap engine, which has brought in all that the turn needs: once more, as a program that runs.
  const bool late = block != nullptr && !made->now && blocks_.running;
  if (block != nullptr && !late) {
    block->in_resident = made->now;
    blocks_.insert(block);
    access_.follow(blocks_, *block);  // access may have changed since it was mapped
  } else {
    if (made->now) use_.drop_resident(order.bytes);
    use_.drop_allocated(order.bytes);
  }
  lock.unlock();
  if (late) {
    backing_.dispose(block);
    return false;
  }
  made->block = block;
  device_.turns().memory_changed();
  return true;
}

CUresult NewBlocks::refuse(size_t bytes, const char* why) {
  const int64_t now = now_ns();
  const bool is_told = now < refusal_told_until_ns_.load(std::memory_order_relaxed);
  if (!is_told) refusal_told_until_ns_.store(now + kTellAgain_ns, std::memory_order_relaxed);
  const size_t ceiling = device_.limit().ceiling();
  char room[64] = "";
  if (ceiling != SIZE_MAX) snprintf(room, sizeof room, "; there is room for %s at most", amount(ceiling).text);
  // A framework says that it is out of memory, but not that others leave enough.
  log(is_told ? LogLevel::kInfo : LogLevel::kWarning,
      "GPU %s: an allocation of %s was refused: %s (this program has %s, %s of them on the GPU%s)", device_.gpu(), amount(bytes).text, why,
      amount(use_.allocated()).text, amount(use_.resident()).text, room);
  return cuda::CUDA_ERROR_OUT_OF_MEMORY;
}

// After a refusal: was it for a ceiling that has only fallen for a moment?
bool NewBlocks::ceiling_rose_again(size_t bytes, CeilingWait* wait) const {
  sleep_ns(kSettling_ns);  // of a ceiling that fell in that moment we hear after the refusal
  bool was_above = false;
  while (use_.allocated() + bytes > device_.limit().ceiling()) {
    was_above = true;
    if (device_.process().ending() || !device_.limit().may_rise_to(use_.allocated() + bytes, wait)) return false;
    sleep_ns(kSettling_ns);
  }
  return was_above;
}

// Before a refusal: what was freed in stream order may be all that is missing, behind long work.
bool NewBlocks::frees_pass() {
  const size_t before = use_.resident() + use_.allocated();
  device_.memory().give_back_caches(DeviceMemory::kLongWork_ns);
  return use_.resident() + use_.allocated() < before;
}

CUresult NewBlocks::allocate(const BlockOrder& order, Block** out) {
  const size_t bytes = order.bytes;
  CeilingWait ceiling_wait;
  for (bool trimmed = false, waited = false;;) {
    const bool needs_lock = residency_.all_stays();
    if (!enter_gate(needs_lock)) continue;
    Attempt made;
    const bool settled = attempt(order, needs_lock, &made);
    leave(device_.process().gate);
    if (!settled) continue;
    if (made.block != nullptr) {
      *out = made.block;
      return cuda::CUDA_SUCCESS;
    }
    if (made.result != cuda::CUDA_SUCCESS && made.result != cuda::CUDA_ERROR_OUT_OF_MEMORY) return made.result;
    if (!trimmed) {
      trimmed = true;
      const size_t before = use_.resident() + use_.allocated();
      device_.memory().give_back_caches();
      if (use_.resident() + use_.allocated() < before) continue;
    }
    const bool waits = !made.now && !needs_lock;
    const char* refusal = nullptr;
    if (made.result == cuda::CUDA_ERROR_OUT_OF_MEMORY) {
      refusal = "the driver has no memory";
    } else if (waits && !device_.limit().may_rise_to(use_.allocated() + bytes, &ceiling_wait)) {
      refusal = "it does not fit the GPU, whatever others have there";
    } else if (device_.process().ending()) {
      return cuda::CUDA_ERROR_DEINITIALIZED;
    } else if (waits) {  // for the ceiling
      sleep_ns(kSettling_ns);
    } else if (!made.now) {  // the lock was lost meanwhile, or the turn has not quite begun
      sleep_ns(kLockPause_ns);
    } else if (device_.turns().grow(bytes) == Turns::Growth::kOutOfMemory && !ceiling_rose_again(bytes, &ceiling_wait)) {
      refusal = "the scheduler finds no room";
    }
    if (refusal != nullptr && (std::exchange(waited, true) || !frees_pass())) return refuse(bytes, refusal);
  }
}

}  // namespace nvshare::interposer
