// What this process may charge against its tenant's memory limit on one GPU without asking (its *lease*), and what it has charged.
//
// lease = charged + left. Every charge comes out of what is left, in one step, so that two threads never both get the last bytes, and
// what the scheduler recalls cannot be charged at the same time. Nothing goes below zero. Pure and lock-free; any thread may call
// anything, but what changes the lease has to be told to the scheduler in the same order: Turns' mutex.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace nvshare::interposer {

class Lease {
 public:
  // False: not enough is left, nothing was charged.
  bool charge(uint64_t bytes) {
    uint64_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left < bytes) return false;
    } while (!left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed));
    charged_.fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  // Of an earlier charge.
  void refund(uint64_t bytes) {
    uint64_t charged = charged_.load(std::memory_order_relaxed);
    uint64_t less = 0;
    do {
      less = std::min(charged, bytes);
    } while (!charged_.compare_exchange_weak(charged, charged - less, std::memory_order_relaxed));
    left_.fetch_add(less, std::memory_order_relaxed);
  }

  // ---- what changes the lease ----
  void grow(uint64_t bytes) {
    leased_.fetch_add(bytes, std::memory_order_relaxed);
    left_.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Grows by `bytes`, of which so many are charged at once: nobody else can have them in between.
  void grow_charged(uint64_t bytes, uint64_t charged) {
    leased_.fetch_add(bytes, std::memory_order_relaxed);
    charged_.fetch_add(charged, std::memory_order_relaxed);
    left_.fetch_add(bytes - charged, std::memory_order_relaxed);
  }
  // Charges what cannot be refused. Returns by how much the lease had to grow.
  uint64_t take(uint64_t bytes) {
    if (charge(bytes)) return 0;
    grow_charged(bytes, bytes);
    return bytes;
  }
  // Gives back what is left: `bytes` and half of the rest, so that the next small need does not ask again. Returns how much.
  uint64_t give_back(uint64_t bytes) {
    uint64_t left = left_.load(std::memory_order_relaxed);
    uint64_t given = 0;
    do {
      given = std::min(left, bytes) + (left > bytes ? (left - bytes) / 2 : 0);
    } while (!left_.compare_exchange_weak(left, left - given, std::memory_order_relaxed));
    leased_.fetch_sub(given, std::memory_order_relaxed);
    return given;
  }

  uint64_t charged() const { return charged_.load(std::memory_order_relaxed); }
  uint64_t left() const { return left_.load(std::memory_order_relaxed); }
  uint64_t leased() const { return leased_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> left_{0};
  std::atomic<uint64_t> charged_{0};
  std::atomic<uint64_t> leased_{0};
};

}  // namespace nvshare::interposer
