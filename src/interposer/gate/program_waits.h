// When a wait of the program for the GPU returned last, and how often the program had come to the gate by then. Thread-safe, lock-free.
#pragma once

#include <atomic>
#include <cstdint>

namespace nvshare::interposer {

class ProgramWaits {
 public:
  // at_ns 0: none has returned, or one does just now.
  struct Last {
    int64_t at_ns = 0;
    uint64_t entries = 0;
  };

  // One returned then; `entries` counts who had come to the gate until after it. One thread at a time notes it; others leave it.
  void returned(int64_t at_ns, uint64_t entries) {
    if (noting_.exchange(true, std::memory_order_acq_rel)) return;
    at_ns_.store(0, std::memory_order_seq_cst);
    entries_.store(entries, std::memory_order_seq_cst);
    at_ns_.store(at_ns, std::memory_order_seq_cst);
    noting_.store(false, std::memory_order_release);
  }

  Last last() const {
    const int64_t at = at_ns_.load(std::memory_order_seq_cst);
    const uint64_t entered = entries_.load(std::memory_order_seq_cst);
    return at_ns_.load(std::memory_order_seq_cst) == at ? Last{at, entered} : Last{};
  }

 private:
  std::atomic<bool> noting_{false};
  std::atomic<int64_t> at_ns_{0};
  std::atomic<uint64_t> entries_{0};
};

}  // namespace nvshare::interposer
