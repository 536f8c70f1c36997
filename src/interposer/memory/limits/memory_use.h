// How much this process has on one GPU, in bytes: `allocated` by the program, of that `resident` (on the GPU now), of that `unswappable`
// (never leaves). Resident never passes allocated, nor unswappable resident: what grows is raised in this order, what shrinks lowered in
// the other.
//
// Lock-free. A thread that decides by a figure and then changes it (within the budget or not) holds the mutex of Blocks over both.
#pragma once

#include <atomic>
#include <cstddef>

namespace nvshare::interposer {

class MemoryUse {
 public:
  size_t allocated() const { return allocated_.load(std::memory_order_relaxed); }
  size_t resident() const { return resident_.load(std::memory_order_relaxed); }
  size_t unswappable() const { return unswappable_.load(std::memory_order_relaxed); }

  void add_allocated(size_t bytes) { allocated_.fetch_add(bytes, std::memory_order_relaxed); }
  void drop_allocated(size_t bytes) { allocated_.fetch_sub(bytes, std::memory_order_relaxed); }
  void add_resident(size_t bytes) { resident_.fetch_add(bytes, std::memory_order_relaxed); }
  void drop_resident(size_t bytes) { resident_.fetch_sub(bytes, std::memory_order_relaxed); }
  // Of what is resident.
  void add_unswappable(size_t bytes) { unswappable_.fetch_add(bytes, std::memory_order_relaxed); }
  void drop_unswappable(size_t bytes) { unswappable_.fetch_sub(bytes, std::memory_order_relaxed); }

  // All three, of memory that is allocated on the GPU and stays there.
  void add_fixed(size_t bytes) {
    add_allocated(bytes);
    add_resident(bytes);
    add_unswappable(bytes);
  }
  void drop_fixed(size_t bytes) {
    drop_unswappable(bytes);
    drop_resident(bytes);
    drop_allocated(bytes);
  }

 private:
  std::atomic<size_t> allocated_{0};
  std::atomic<size_t> resident_{0};
  std::atomic<size_t> unswappable_{0};
};

}  // namespace nvshare::interposer
