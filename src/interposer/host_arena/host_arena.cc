#include "interposer/host_arena/host_arena.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "interposer/host_arena/segment_memory.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using protocol::ArenaOwner;

namespace {

// Nothing came for so long: the scheduler has lost the request. It answers within seconds even if a neighbour does not.
constexpr int64_t kPatience_ns = 20'000'000'000;
constexpr int64_t kShortToldEvery_ns = 10'000'000'000;

}  // namespace

// ---- slots ----

bool HostArena::take_any(size_t bytes, HostSlot* slot) {
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    slot->segment = i;
    if (segments_[i].take(bytes, slot)) return true;
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
    ask(lent_ + HostSegment::round_up(bytes), true);
  }
  --waiters_;
  return slot;
}

void HostArena::give_back(const HostSlot& slot) {
  if (slot.data == nullptr) return;
  Lock lock(mutex_);
  if (slot.segment >= segments_.size()) return;  // its parent's, to a forked child
  segments_[slot.segment].give_back(slot);
  changed_.notify_all();
}

size_t HostArena::ready_bytes() {
  Lock lock(mutex_);
  return ready_;
}

size_t HostArena::used_bytes() {
  Lock lock(mutex_);
  size_t sum = 0;
  for (const HostSegment& segment : segments_) sum += segment.used_bytes();
  return sum;
}

std::vector<HostArena::SegmentUse> HostArena::segment_uses() {
  std::vector<SegmentUse> uses;
  Lock lock(mutex_);
  uses.reserve(segments_.size());
  for (const HostSegment& segment : segments_) {
    uses.push_back({segment.may_go() ? segment.bytes : 0, segment.used_bytes()});
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
  asked_ = std::min<size_t>(std::max(HostSegment::round_up(total), lent_), protocol::kArenaBytesMax);
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
  const bool asked_already = asked_ > lent_ && !refused_ && asked_ >= HostSegment::round_up(bytes) && (urgent_ || !urgent);
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
  for (const HostSegment& segment : segments_) {
    if (segment.there()) add(segment.id, segment.bytes, segment.owner);
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
  const ArenaOwner owner = more > 0 ? own_.owner_for(more) : ArenaOwner::kProcess;  // reads files: not under the mutex
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
    for (HostSegment& segment : segments_) {
      if (marked >= bytes) break;
      if (!segment.may_go() || segment.used_bytes() > 0 || segment.owner != owner) continue;
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

void HostArena::look_at_cgroup() {
  const std::optional<uint64_t> left = OwnMemory::too_little();
  if (!left) return;
  Lock lock(mutex_);
  size_t marked = mark_leaving(SIZE_MAX, true);
  if (!own_.tight() || marked > 0) {
    log(LogLevel::kInfo, "this program's cgroup has %llu MiB left of its memory limit: %zu MiB of unused swap arena are given back",
        static_cast<unsigned long long>(*left >> 20), marked >> 20);
  }
  own_.set_tight();
  notify();
}

void HostArena::settle_shrink() {
  if (shrink_ == 0) return;
  for (const HostSegment& segment : segments_) {
    if (segment.there() && segment.leaving && workers_ > 0) return;
  }
  shrunk_.push_back({shrink_, shrink_bytes_});
  shrink_ = 0;
}

void HostArena::context_gone(cuda::CUcontext context) {
  Lock lock(mutex_);
  if (context_ == context) context_ = nullptr;
  while (in_driver_ > 0) changed_.wait(mutex_);
  for (HostSegment& segment : segments_) {
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

// ---- workers ----

void HostArena::start_workers(bool urgent) {
  size_t work = loans_.size();
  for (const HostSegment& segment : segments_) {
    const bool to_pin = segment.may_be_pinned() && context_ != nullptr;
    if (segment.must_go() || to_pin) ++work;
  }
  if (context_ == nullptr) work -= loans_.size();
  // An arena that only prepares takes one processor for it: the program runs.
  uint32_t most = 1;
  if (urgent) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    most = processors <= 2 ? 1 : (processors >= 16 ? 8 : static_cast<uint32_t>(processors) / 2);
  }
  while (workers_ < most && workers_ < work) {
    pthread_t thread;
    if (!start_thread(&thread, worker_body, this, "nvshare-pin")) return;
    pthread_detach(thread);
    ++workers_;
  }
}

void* HostArena::worker_body(void* self) {
  static_cast<HostArena*>(self)->work();
  return nullptr;
}

void HostArena::work() {
  Lock lock(mutex_);
  while (!ending_ && (unmap_one() || (context_ != nullptr && (build_one() || pin_one())))) {
  }
  --workers_;
  settle_shrink();
  notify();
}

bool HostArena::unmap_one() {
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (!segments_[i].must_go()) continue;
    segments_[i].busy = true;
    const HostSegment segment = segments_[i];
    ++in_driver_;
    mutex_.unlock();
    unmake(segment.data, segment.bytes, segment.pinned_in);
    mutex_.lock();
    --in_driver_;
    segments_[i] = HostSegment{};
    ready_ -= segment.bytes;
    returned_.push_back(segment.id);
    settle_shrink();
    notify();
    device_.turns().memory_changed();
    return true;
  }
  return false;
}

bool HostArena::build_one() {
  if (loans_.empty()) return false;
  Loan loan = std::move(loans_.front());
  loans_.erase(loans_.begin());
  const CUcontext context = context_;
  const uint64_t lender = lenders_gone_;
  building_ += loan.bytes;
  ++in_driver_;
  mutex_.unlock();
  const bool own = loan.owner == ArenaOwner::kProcess;
  char* data = own ? make_own(loan.bytes) : map_lent(loan.memory.get(), loan.bytes);
  loan.memory.reset();  // the mapping holds it
  const bool pinned = data != nullptr && pin(data, loan.bytes, context);
  mutex_.lock();
  const bool stale = lender != lenders_gone_;  // who lent it is gone, and nobody has counted it since
  if (!stale) building_ -= loan.bytes;
  --in_driver_;
  if (data != nullptr) {
    HostSegment segment;
    segment.leaving = stale;
    segment.data = data;
    segment.bytes = loan.bytes;
    segment.id = loan.id;
    segment.owner = loan.owner;
    segment.pinned_in = pinned ? context : nullptr;
    segment.unpinnable = !pinned;
    add(segment);
  } else if (!stale) {
    return_unmade(loan);
  }
  notify();
  device_.turns().memory_changed();
  return true;
}

// Numbers of segments stay: slots name them.
void HostArena::add(const HostSegment& segment) {
  auto vacant = std::find_if(segments_.begin(), segments_.end(), [](const HostSegment& each) { return !each.there(); });
  if (vacant != segments_.end()) {
    *vacant = segment;
  } else {
    segments_.push_back(segment);
  }
  ready_ += segment.bytes;
}

void HostArena::return_unmade(const Loan& loan) {
  lent_ -= loan.bytes;
  returned_.push_back(loan.id);
  if (loan.owner == ArenaOwner::kProcess && own_.found_short()) {  // then let it be the scheduler's
    ask(asked_, urgent_ || waiters_ > 0);
    return;
  }
  log(LogLevel::kWarning, "host memory is short: the swap arena cannot grow by %zu MiB", loan.bytes >> 20);
  asked_ = std::min(asked_, lent_);
  refused_ = true;
}

// What lost its registration with the context that it was made in.
bool HostArena::pin_one() {
  for (size_t i = 0; i < segments_.size(); ++i) {
    HostSegment& candidate = segments_[i];
    if (!candidate.may_be_pinned()) continue;
    candidate.busy = true;
    char* data = candidate.data;
    const size_t bytes = candidate.bytes;
    const CUcontext context = context_;
    ++in_driver_;
    mutex_.unlock();
    const bool pinned = pin(data, bytes, context);
    mutex_.lock();
    --in_driver_;
    segments_[i].busy = false;
    segments_[i].pinned_in = pinned ? context : nullptr;
    segments_[i].unpinnable = !pinned;
    changed_.notify_all();
    return true;
  }
  return false;
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
