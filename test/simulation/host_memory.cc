#include "host_memory.h"

#include <algorithm>
#include <utility>

namespace nvshare::simulation {

namespace {
constexpr Bytes kUnit = static_cast<Bytes>(protocol::kArenaUnitBytes);
constexpr Bytes kMadeASecond = 4 * kGiB;  // touched and pinned
constexpr Duration kUnmapping = 5 * kMs;
constexpr Duration kPatience = 20 * kSec;

Bytes round_up(Bytes bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }
}  // namespace

HostMemory::Segment* HostMemory::find(uint64_t id) {
  const auto at = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& segment) { return segment.id == id; });
  return at == segments_.end() ? nullptr : &*at;
}

Bytes HostMemory::ready() const {
  Bytes sum = 0;
  for (const Segment& segment : segments_) sum += segment.ready ? segment.bytes : 0;
  return sum;
}

Bytes HostMemory::lent_bytes() const {
  Bytes sum = 0;
  for (const Segment& segment : segments_) sum += segment.bytes;
  return sum;
}

bool HostMemory::coming() const {
  const bool made = std::any_of(segments_.begin(), segments_.end(), [](const Segment& segment) { return !segment.ready; });
  return made || (asked_ > leased_ && !refused_);
}

void HostMemory::ask(Bytes total, bool urgent) {
  asked_ = std::max(round_up(total), leased_);
  refused_ = false;
  if (asked_ <= leased_) return;
  ++request_;
  urgent_ = urgent;
  request_due_ = true;
  around_.told();
}

void HostMemory::grow_to(Bytes total, bool urgent) {
  const bool asked_already = asked_ > leased_ && !refused_ && asked_ >= round_up(total) && (urgent_ || !urgent);
  if (!asked_already) ask(std::max(total, urgent ? Bytes{0} : asked_), urgent);
}

HostMemory::Taken HostMemory::take(Bytes bytes) {
  Bytes room = 0;
  for (const Segment& segment : segments_) room += segment.ready && !segment.leaving ? segment.bytes - segment.used : 0;
  if (room >= bytes) {
    waits_ = false;
    used_ += bytes;
    for (Segment& segment : segments_) {
      if (!segment.ready || segment.leaving) continue;
      const Bytes part = std::min(bytes, segment.bytes - segment.used);
      if (part > 0) slots_.push_back({segment.id, part});
      segment.used += part;
      bytes -= part;
    }
    return Taken::kYes;
  }
  if (!coming()) {
    if (refused_) {
      waits_ = false;
      return Taken::kShort;
    }
    ask(leased_ + round_up(bytes - room), true);
  }
  if (!std::exchange(waits_, true)) {
    around_.later(kPatience, [this, request = request_] {
      if (!waits_ || request != request_) return;
      refused_ = true;
      around_.changed();
    });
  }
  return Taken::kWait;
}

void HostMemory::give_back(Bytes bytes) {
  used_ -= bytes;
  while (bytes > 0) {
    Slot& slot = slots_.front();
    const Bytes part = std::min(bytes, slot.bytes);
    find(slot.segment)->used -= part;
    slot.bytes -= part;
    bytes -= part;
    if (slot.bytes == 0) slots_.pop_front();
  }
}

// ---- what the scheduler says ----

void HostMemory::lent(const protocol::ArenaSegment& segment) {
  leased_ += static_cast<Bytes>(segment.bytes);
  segments_.push_back({segment.segment, static_cast<Bytes>(segment.bytes), 0, false, false});
  const auto takes = static_cast<Duration>(static_cast<double>(segment.bytes) * 1e9 / static_cast<double>(kMadeASecond));
  around_.later(takes + around_.wake_time(), [this, id = segment.segment] { make(id); });
}

void HostMemory::make(uint64_t id) {
  if (Segment* segment = find(id)) segment->ready = true;
  around_.resized();
  around_.changed();
}

void HostMemory::refused(const protocol::ArenaRefused& message) {
  if (message.request != request_ || request_due_) return;
  refused_ = true;
  asked_ = leased_;
  around_.changed();
}

void HostMemory::shrink(const protocol::ArenaShrink& message) {
  Bytes marked = 0;
  for (Segment& segment : segments_) {
    if (waits_ || shrink_ != 0 || marked >= static_cast<Bytes>(message.bytes)) break;
    if (segment.used > 0 || segment.leaving || !segment.ready) continue;
    segment.leaving = true;
    marked += segment.bytes;
    leased_ -= segment.bytes;
    around_.later(kUnmapping + around_.wake_time(), [this, id = segment.id] { unmap(id); });
  }
  asked_ = std::min(asked_, leased_);
  if (marked == 0) {
    outbox_.shrunk.push_back({message.shrink, 0});
  } else {
    shrink_ = message.shrink;
    shrink_bytes_ = marked;
  }
  around_.told();
}

void HostMemory::unmap(uint64_t id) {
  std::erase_if(segments_, [&](const Segment& segment) { return segment.id == id; });
  outbox_.returned.push_back(id);
  settle_shrink();
  around_.told();
  around_.resized();
}

void HostMemory::settle_shrink() {
  if (shrink_ == 0) return;
  if (std::any_of(segments_.begin(), segments_.end(), [](const Segment& segment) { return segment.leaving; })) return;
  outbox_.shrunk.push_back({shrink_, static_cast<uint64_t>(shrink_bytes_)});
  shrink_ = 0;
}

void HostMemory::lender_gone() {
  std::erase_if(segments_, [&](const Segment& segment) {  // the next scheduler would never count it
    if (segment.ready || segment.leaving) return false;
    leased_ -= segment.bytes;
    return true;
  });
  request_due_ = false;
  refused_ = true;
  asked_ = leased_;
  outbox_ = {};
  shrink_ = 0;
  around_.changed();
}

std::vector<protocol::ArenaHeld> HostMemory::held() const {
  std::vector<protocol::ArenaHeld> all;
  for (const Segment& segment : segments_) all.push_back({segment.id, static_cast<uint64_t>(segment.bytes), 0, {}});
  return all;
}

HostMemory::Outbox HostMemory::take_outbox() {
  Outbox outbox = std::exchange(outbox_, {});
  outbox.asks = std::exchange(request_due_, false) && asked_ > leased_;
  if (outbox.asks) {
    outbox.request.request = request_;
    outbox.request.total = static_cast<uint64_t>(asked_);
    outbox.request.urgent = urgent_ ? 1 : 0;
  }
  return outbox;
}

}  // namespace nvshare::simulation
