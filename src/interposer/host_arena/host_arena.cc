#include "interposer/host_arena/host_arena.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/variable.h"

namespace nvshare::interposer {

using protocol::ArenaOwner;

namespace {

constexpr uint32_t kUnitsMax = HostArena::kSegmentBytesMax / HostArena::kUnitBytes;
static_assert(kUnitsMax <= 128);

// Nothing came for so long: the scheduler has lost the request. It answers within seconds even if a neighbour does not.
constexpr int64_t kPatience_ns = 20'000'000'000;
constexpr int64_t kShortToldEvery_ns = 10'000'000'000;

size_t round_up(size_t bytes) { return (bytes + HostArena::kUnitBytes - 1) / HostArena::kUnitBytes * HostArena::kUnitBytes; }

// The first run of `count` clear bits below `limit`, or -1.
int find_run(const uint64_t* bits, uint32_t limit, uint32_t count) {
  uint32_t run = 0;
  for (uint32_t i = 0; i < limit; ++i) {
    run = (bits[i / 64] >> (i % 64) & 1) != 0 ? 0 : run + 1;
    if (run == count) return static_cast<int>(i + 1 - count);
  }
  return -1;
}

}  // namespace

void HostArena::configure() {
  static constexpr ChoiceVariable<Mode, 3> kVariable = {
      .name = "NVSHARE_HOST_ARENA",
      .choices = {{"auto", Mode::kAuto}, {"process", Mode::kProcess}, {"scheduler", Mode::kScheduler}},
      .unset = Mode::kAuto,
      .wrong = Mode::kAuto,
      .then = "Going on with auto",
      .meaning = "whose host memory the program is swapped to; the scheduler's setting goes before"};
  mode_ = value_of(kVariable);
}

// ---- slots ----

bool HostArena::take(Segment& segment, uint32_t index, size_t units, HostSlot* slot) {
  const auto limit = static_cast<uint32_t>(segment.bytes / kUnitBytes);
  if (segment.data == nullptr || segment.leaving || segment.used_units + units > limit) return false;
  int first = find_run(segment.used, limit, static_cast<uint32_t>(units));
  if (first < 0) return false;
  for (uint32_t i = static_cast<uint32_t>(first); i < static_cast<uint32_t>(first) + units; ++i) {
    segment.used[i / 64] |= uint64_t{1} << (i % 64);
  }
  segment.used_units += static_cast<uint32_t>(units);
  slot->data = segment.data + static_cast<size_t>(first) * kUnitBytes;
  slot->segment = index;
  slot->bytes = static_cast<uint32_t>(units * kUnitBytes);
  return true;
}

bool HostArena::take_any(size_t bytes, HostSlot* slot) {
  const size_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (take(segments_[i], i, units, slot)) return true;
  }
  return false;
}

HostSlot HostArena::allocate_ready(size_t bytes) {
  HostSlot slot;
  Lock lock(mutex_);
  if (!ending_) take_any(bytes, &slot);
  return slot;
}

HostSlot HostArena::allocate(size_t bytes) {
  Lock lock(mutex_);
  ++waiters_;
  HostSlot slot;
  while (!ending_ && !take_any(bytes, &slot)) {
    if (coming()) {
      if (!changed_.wait_until(mutex_, now_ns() + kPatience_ns)) {
        log(LogLevel::kWarning, "the scheduler has not answered a request for host memory");
        refused_ = true;
      }
      continue;
    }
    if (refused_) break;
    // Fragmentation, or more swapped than was foreseen: as much more as is missing now.
    ask(lent_ + round_up(bytes), true);
  }
  --waiters_;
  return slot;
}

void HostArena::give_back(const HostSlot& slot) {
  if (slot.data == nullptr) return;
  Lock lock(mutex_);
  if (slot.segment >= segments_.size()) return;  // its parent's, to a forked child
  Segment& segment = segments_[slot.segment];
  size_t first = static_cast<size_t>(slot.data - segment.data) / kUnitBytes;
  size_t units = slot.bytes / kUnitBytes;
  for (size_t i = first; i < first + units; ++i) segment.used[i / 64] &= ~(uint64_t{1} << (i % 64));
  segment.used_units -= static_cast<uint32_t>(units);
  changed_.notify_all();
}

size_t HostArena::ready_bytes() {
  Lock lock(mutex_);
  return ready_;
}

size_t HostArena::used_bytes() {
  Lock lock(mutex_);
  size_t units = 0;
  for (const Segment& segment : segments_) units += segment.used_units;
  return units * kUnitBytes;
}

std::vector<HostArena::SegmentUse> HostArena::segment_uses() {
  std::vector<SegmentUse> uses;
  Lock lock(mutex_);
  uses.reserve(segments_.size());
  for (const Segment& segment : segments_) {
    const bool may_go = segment.data != nullptr && !segment.leaving && !segment.busy;
    uses.push_back({may_go ? segment.bytes : 0, size_t{segment.used_units} * kUnitBytes});
  }
  return uses;
}

// ---- growing ----

void HostArena::notify() {
  changed_.notify_all();
  device_.link().arena_changed();  // takes no lock
}

bool HostArena::coming() const {
  const bool being_made = building_ > 0 || (!loans_.empty() && workers_ > 0);
  return being_made || (asked_ > lent_ && !refused_);
}

void HostArena::ask(size_t total, bool urgent) {
  asked_ = std::min<size_t>(std::max(round_up(total), lent_), protocol::kArenaBytesMax);
  refused_ = false;
  if (asked_ <= lent_) return;
  ++request_;
  urgent_ = urgent;
  request_due_ = true;
  notify();
}

void HostArena::grow_to(size_t bytes, cuda::CUcontext context, bool urgent) {
  Lock lock(mutex_);
  if (ending_) return;
  context_ = context;
  const bool asked_already = asked_ > lent_ && !refused_ && asked_ >= round_up(bytes) && (urgent_ || !urgent);
  if (!asked_already) ask(std::max(bytes, urgent ? size_t{0} : asked_), urgent);
  start_workers(urgent);  // also for what lost its registration with an earlier context
}

void HostArena::lent(const protocol::ArenaSegment& segment, FileDescriptor memory) {
  Lock lock(mutex_);
  lent_ += segment.bytes;
  loans_.push_back({segment.segment, segment.bytes, static_cast<ArenaOwner>(segment.owner), std::move(memory)});
  start_workers(urgent_ || waiters_ > 0);
  if (workers_ == 0 && context_ != nullptr) {
    // No thread to be had: allocate() must not wait for one.
    log(LogLevel::kWarning, "no thread could be started to make host memory ready");
    refused_ = true;
  }
  changed_.notify_all();
}

void HostArena::refused(const protocol::ArenaRefused& message) {
  Lock lock(mutex_);
  if (message.request != request_ || request_due_) return;  // we have asked anew since
  refused_ = true;
  if (urgent_ && now_ns() - short_told_ns_ > kShortToldEvery_ns) {
    short_told_ns_ = now_ns();
    log(LogLevel::kInfo, "host memory is short: %llu MiB more were wanted to swap out to; what cannot move stays on the GPU",
        static_cast<unsigned long long>(message.missing >> 20));
  }
  asked_ = lent_;
  changed_.notify_all();
}

void HostArena::lender_gone() {
  Lock lock(mutex_);
  // The next scheduler believes what the process has when it registers; what is made later it would never count.
  for (const Loan& loan : loans_) lent_ -= loan.bytes;
  loans_.clear();
  lent_ -= building_;
  building_ = 0;
  ++lenders_gone_;
  request_due_ = false;
  refused_ = true;
  asked_ = lent_;
  returned_.clear();  // the next scheduler hears only of what we have
  shrunk_.clear();
  shrink_ = 0;
  changed_.notify_all();
}

std::vector<protocol::ArenaHeld> HostArena::held() {
  std::vector<protocol::ArenaHeld> all;
  Lock lock(mutex_);
  auto add = [&](uint64_t id, size_t bytes, ArenaOwner owner) {
    protocol::ArenaHeld message{};
    message.segment = id;
    message.bytes = bytes;
    message.owner = static_cast<uint8_t>(owner);
    all.push_back(message);
  };
  for (const Segment& segment : segments_) {
    if (segment.data != nullptr) add(segment.id, segment.bytes, segment.owner);
  }
  for (const Loan& loan : loans_) add(loan.id, loan.bytes, loan.owner);  // what came since
  return all;
}

bool HostArena::take_outbox(Outbox* outbox) {
  size_t more = 0;
  {
    Lock lock(mutex_);
    if (request_due_) more = asked_ > lent_ ? asked_ - lent_ : 0;
  }
  const ArenaOwner owner = more > 0 ? owner_for(more) : ArenaOwner::kProcess;  // reads files: not under the mutex
  Lock lock(mutex_);
  outbox->returned.swap(returned_);
  outbox->shrunk.swap(shrunk_);
  outbox->asks = request_due_ && more > 0;
  if (outbox->asks) {
    request_due_ = false;
    outbox->request.request = request_;
    outbox->request.total = asked_;
    outbox->request.owner = static_cast<uint8_t>(owner);
    outbox->request.urgent = urgent_ ? 1 : 0;
  }
  return outbox->asks || !outbox->returned.empty() || !outbox->shrunk.empty();
}

// ---- giving back ----

size_t HostArena::mark_leaving(size_t bytes, bool only_own) {
  size_t marked = 0;
  for (auto loan = loans_.begin(); loan != loans_.end() && marked < bytes;) {
    if (only_own && loan->owner != ArenaOwner::kProcess) {
      ++loan;
      continue;
    }
    marked += loan->bytes;
    lent_ -= loan->bytes;
    returned_.push_back(loan->id);
    loan = loans_.erase(loan);
  }
  // The scheduler's first: they help whoever needs it.
  for (ArenaOwner owner : {ArenaOwner::kScheduler, ArenaOwner::kProcess}) {
    if (only_own && owner == ArenaOwner::kScheduler) continue;
    for (Segment& segment : segments_) {
      if (marked >= bytes) break;
      if (segment.data == nullptr || segment.used_units > 0 || segment.leaving || segment.busy || segment.owner != owner) continue;
      segment.leaving = true;
      marked += segment.bytes;
      lent_ -= segment.bytes;
    }
  }
  asked_ = std::min(asked_, lent_);
  if (marked > 0) start_workers(false);
  return marked;
}

void HostArena::shrink(const protocol::ArenaShrink& message) {
  Lock lock(mutex_);
  // An arena that waits for room itself has none to give.
  size_t marked = waiters_ > 0 || shrink_ != 0 ? 0 : mark_leaving(message.bytes, false);
  if (marked == 0) {
    shrunk_.push_back({message.shrink, 0});
  } else {
    shrink_ = message.shrink;
    shrink_bytes_ = marked;
    settle_shrink();
  }
  notify();
}

void HostArena::settle_shrink() {
  if (shrink_ == 0) return;
  for (const Segment& segment : segments_) {
    if (segment.data != nullptr && segment.leaving && workers_ > 0) return;
  }
  shrunk_.push_back({shrink_, shrink_bytes_});
  shrink_ = 0;
}

void HostArena::context_gone(cuda::CUcontext context) {
  Lock lock(mutex_);
  if (context_ == context) context_ = nullptr;
  while (in_driver_ > 0) changed_.wait(mutex_);
  for (Segment& segment : segments_) {
    if (segment.data == nullptr || segment.pinned_in != context) continue;
    real_driver().cuMemHostUnregister(segment.data);
    segment.pinned_in = nullptr;
  }
}

void HostArena::give_up(int64_t patience_ns) {
  Lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  const int64_t deadline = now_ns() + patience_ns;
  while (in_driver_ > 0 && changed_.wait_until(mutex_, deadline)) {
  }
}

void HostArena::reset_after_fork() {
  mutex_.reset_after_fork();
  segments_.clear();  // MADV_DONTFORK: the child has no such mappings
  loans_.clear();     // closes what the parent still has
  ready_ = lent_ = building_ = asked_ = 0;
  workers_ = in_driver_ = waiters_ = 0;
  context_ = nullptr;
}

}  // namespace nvshare::interposer
