// For tests: what a client that lies says next. Messages of a random type, whose words are zeros, amounts that are known to hurt, or words
// that the scheduler itself has sent somebody: so grants, segments, tickets and ids are right often enough to get past the first check.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "protocol/codec.h"

namespace nvshare::scheduler {

class TestLiar {
 public:
  explicit TestLiar(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t bound) { return random_() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  // Remembers the words of what the scheduler sent to somebody.
  void hear(const protocol::Packet& packet);
  // Of the GPU of this number; `former_id`: that it had as a client before, or 0.
  protocol::Packet registration(uint8_t gpu, uint64_t former_id);
  protocol::Packet message();

 private:
  uint64_t word();
  void make_likely(protocol::MessageType type, protocol::Packet& packet);

  std::mt19937_64 random_;
  std::vector<uint64_t> heard_;
};

}  // namespace nvshare::scheduler
