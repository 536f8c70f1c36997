// A client's host memory for swapping, as interposer/host_arena/host_arena.cc has it: segments that the scheduler lends, made ready in the
// background, filled by evictions, given back when others need them. Not thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "protocol/messages.h"
#include "world.h"

namespace nvshare::simulation {

class HostMemory {
 public:
  struct Surroundings {
    std::function<void(Duration, std::function<void()>)> later;  // in the process
    std::function<Duration()> wake_time;
    std::function<void()> changed;  // an eviction that waits looks again
    std::function<void()> told;     // there is something for the scheduler
    std::function<void()> resized;  // what is ready, which the client reports with its memory
  };
  explicit HostMemory(Surroundings around) : around_(std::move(around)) {}

  // ---- for the swap engine ----
  void grow_to(Bytes total, bool urgent);
  enum class Taken : uint8_t { kYes, kWait, kShort };
  // Places for so many bytes. kWait: `changed` is called when it may have come. kShort: the scheduler has none.
  Taken take(Bytes bytes);
  void give_back(Bytes bytes);
  Bytes ready() const;  // made, used or not
  Bytes used() const { return used_; }

  // ---- for the socket's thread ----
  struct Outbox {
    std::vector<uint64_t> returned;
    std::vector<protocol::ArenaShrunk> shrunk;
    bool asks = false;
    protocol::ArenaRequest request{};
  };
  Outbox take_outbox();
  bool has_news() const { return request_due_ || !outbox_.returned.empty() || !outbox_.shrunk.empty(); }
  void lent(const protocol::ArenaSegment& segment);
  void refused(const protocol::ArenaRefused& message);
  void shrink(const protocol::ArenaShrink& message);
  void lender_gone();
  std::vector<protocol::ArenaHeld> held() const;
  // Of the scheduler's books: what it has lent and does not know to be on its way back.
  Bytes lent_bytes() const;
  bool at_rest() const { return !has_news() && shrink_ == 0 && !waits_ && asked_ <= leased_; }
  void free_all() {
    segments_.clear();
    slots_.clear();
    used_ = leased_ = asked_ = 0;
  }

 private:
  struct Segment {
    uint64_t id = 0;
    Bytes bytes = 0;
    Bytes used = 0;
    bool ready = false;
    bool leaving = false;
  };
  struct Slot {
    uint64_t segment;
    Bytes bytes;
  };

  void ask(Bytes total, bool urgent);
  bool coming() const;
  Segment* find(uint64_t id);
  void make(uint64_t id);
  void unmap(uint64_t id);
  void settle_shrink();

  Surroundings around_;
  std::vector<Segment> segments_;
  std::deque<Slot> slots_;  // oldest first
  Bytes used_ = 0;
  Bytes leased_ = 0;  // what the scheduler takes it to have, less what is on its way back
  Bytes asked_ = 0;
  uint64_t request_ = 0;
  bool urgent_ = false, request_due_ = false, refused_ = false;
  bool waits_ = false;  // an eviction does
  uint64_t shrink_ = 0;
  Bytes shrink_bytes_ = 0;
  Outbox outbox_;
};

}  // namespace nvshare::simulation
