// The client's part in its tenant's memory limit: a lease of headroom that grows and shrinks by messages (protocol/messages.h).
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "interposer/client.h"
#include "interposer/device.h"
#include "interposer/log.h"
#include "interposer/own_limit.h"
#include "interposer/process.h"

namespace nvshare::interposer {

namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kLook_ns = 500 * kMillisecond;             // for the program's end
constexpr int64_t kRefusalPause_ns = 10'000 * kMillisecond;  // between two lines about allocations past the limit
constexpr int64_t kAlonePatience_ns = 2'000 * kMillisecond;  // without a scheduler: as long as a restart takes

}  // namespace

bool Client::read_own_limit() {
  bool right = true;
  const OwnLimit limit = own_memory_limit([&](const char* variable, const char* why) {
    log(LogLevel::kError, "%s: %s", variable, why);
    right = false;
  });
  own_limit_ = limit.bytes;
  own_limit_variable_ = limit.variable;
  if (own_limit_ != 0) memory_limit_.store(own_limit_, std::memory_order_release);
  return right;
}

const char* Client::limit_set_by(uint64_t limit) const {
  if (limit == 0) return "nobody";
  if (limit == node_limit_) return "the node (nvsharectl or Kubernetes)";
  return limit == own_limit_ ? own_limit_variable_ : "another program of its tenant";
}

// Once it is known whether there is a scheduler.
void Client::tell_limit() {
  const uint64_t limit = memory_limit_.load(std::memory_order_relaxed);
  if (limit == 0) {
    log(LogLevel::kInfo, "GPU %d: no memory limit, tenant %llu '%s'", device_.ordinal(), static_cast<unsigned long long>(tenant_),
        tenant_name_);
  } else {
    log(LogLevel::kInfo, "GPU %d: memory limit %llu bytes (%llu MiB), set by %s, tenant %llu '%s'", device_.ordinal(),
        static_cast<unsigned long long>(limit), static_cast<unsigned long long>(limit >> 20), limit_set_by(limit),
        static_cast<unsigned long long>(tenant_), tenant_name_);
  }
}

void Client::tell_refusal(const char* what, size_t bytes, size_t unit, size_t small_unit) {
  refusals_untold_.fetch_add(1, std::memory_order_relaxed);
  const int64_t now = now_ns();
  int64_t due = refusal_due_ns_.load(std::memory_order_relaxed);
  if (now < due || !refusal_due_ns_.compare_exchange_strong(due, now + kRefusalPause_ns, std::memory_order_relaxed)) return;
  const uint64_t refused = refusals_untold_.exchange(0, std::memory_order_relaxed);
  const uint64_t limit = memory_limit();
  const uint64_t own = charged();
  const uint64_t all = tenant_charged();
  const char* set_by;
  uint64_t tenant;
  char tenant_name[sizeof tenant_name_];
  {
    Lock lock(mutex_);
    set_by = limit_set_by(limit);
    tenant = tenant_;
    memcpy(tenant_name, tenant_name_, sizeof tenant_name);
  }
  char more[64] = "";
  if (refused > 1) snprintf(more, sizeof more, "; %llu were refused since the last such line", static_cast<unsigned long long>(refused));
  // Without the mutex: a write to the program's standard error may block.
  log(LogLevel::kWarning,
      "GPU %d: %s of %zu bytes was refused: in use %llu (this program %llu, others of its tenant %llu), memory limit %llu, set by %s, "
      "tenant %llu '%s', counted in units of %zu, small allocations of %zu; CUDA contexts do not count%s",
      device_.ordinal(), what, bytes, static_cast<unsigned long long>(all), static_cast<unsigned long long>(own),
      static_cast<unsigned long long>(all - own), static_cast<unsigned long long>(limit), set_by, static_cast<unsigned long long>(tenant),
      tenant_name, unit, small_unit, more);
}

void Client::lease_alone() {
  const uint64_t bound = own_limit_ != 0 ? std::min(own_limit_, protocol::kLeaseMax) : protocol::kLeaseMax;
  if (lease_.leased() < bound) lease_.grow(bound - lease_.leased());
}

void Client::take_terms(const protocol::Registered& answer, uint64_t claimed) {
  memory_limit_.store(answer.memory_limit, std::memory_order_release);
  node_limit_ = answer.node_limit;
  others_charged_.store(answer.others_charged, std::memory_order_release);
  tenant_ = answer.tenant;
  memcpy(tenant_name_, answer.tenant_name, sizeof tenant_name_);
  if (asks_only_) return;
  tell_limit();
  told_lease_ = std::max(answer.lease, claimed);
  lease_.grow(told_lease_ - claimed);
}

void Client::after_registration() {
  send(protocol::About{NVSHARE_VERSION});
  if (keeps_.why[0] != '\0') send(keeps_);
  // What was taken meanwhile.
  const uint64_t leased = std::min(lease_.leased(), protocol::kLeaseMax);
  if (leased > told_lease_) send(protocol::HeadroomTaken{leased - told_lease_});
  step(turn::Introduced{});
}

void Client::keeps_memory(const char* why) {
  Lock lock(mutex_);
  snprintf(keeps_.why, sizeof keeps_.why, "%s", why);
  send(keeps_);
}

void Client::carry_out(const turn::AskHeadroom& effect) {
  const uint64_t returned = lease_.give_back(protocol::kLeaseMax);
  headroom_asks_.fetch_add(1, std::memory_order_relaxed);
  send(protocol::AskHeadroom{effect.request, effect.bytes, returned});
}
void Client::carry_out(const turn::GrowLease& effect) { lease_.grow_charged(effect.bytes, effect.charged); }
void Client::carry_out(const turn::TryLease& effect) { step(turn::LeaseTried{lease_.charge(effect.bytes)}); }

bool Client::charge(size_t bytes) {
  using Answer = turn::Headroom::Answer;
  if (lease_.charge(bytes)) [[likely]]
    return true;
  if (!shared() || bytes > protocol::kLeaseMax) return false;
  Lock lock(mutex_);
  while (turn_.headroom.answer != Answer::kNone) changed_.wait(mutex_);  // of another thread
  if (lease_.charge(bytes)) return true;
  step(turn::HeadroomWanted{bytes});
  while (turn_.headroom.answer == Answer::kAsked && !Process::ending()) {
    if (!turn_.connected && now_ns() - turn_.disconnected_at > kAlonePatience_ns) break;  // nobody who could say what the others have
    changed_.wait_until(mutex_, now_ns() + kLook_ns);
  }
  const bool charged = turn_.headroom.answer == Answer::kCharged;
  step(turn::HeadroomEnded{});
  return charged;
}

void Client::charge_unasked(size_t bytes) {
  if (lease_.charge(bytes)) return;
  Lock lock(mutex_);
  const uint64_t taken = lease_.take(bytes);
  if (taken > 0 && turn_.connected) send(protocol::HeadroomTaken{taken});
}

void Client::on_headroom(const protocol::Headroom& message) {
  Lock lock(mutex_);
  memory_limit_.store(message.limit, std::memory_order_release);
  others_charged_.store(message.others_charged, std::memory_order_release);
  step(message);
}

void Client::on_recall(const protocol::RecallHeadroom& message) {
  Lock lock(mutex_);
  const uint64_t returned = lease_.give_back(message.bytes);
  send(protocol::HeadroomReturned{message.recall, returned, lease_.charged()});
}

void Client::on_limit(const protocol::UpdateLimit& message) {
  const uint64_t before = memory_limit_.exchange(message.memory_limit, std::memory_order_acq_rel);
  {
    Lock lock(mutex_);
    node_limit_ = message.node_limit;
  }
  others_charged_.store(message.others_charged, std::memory_order_release);
  ceiling_.store(message.memory_ceiling, std::memory_order_release);
  if (before == message.memory_limit) return;
  const uint64_t used = tenant_charged();
  if (message.memory_limit == 0) {
    log(LogLevel::kInfo, "no memory limit holds on GPU %d any more", device_.ordinal());
  } else if (used > message.memory_limit) {
    log(LogLevel::kWarning,
        "the memory limit on GPU %d is %llu bytes now, and %llu are in use: they stay, and nothing more is allocated until less is in use",
        device_.ordinal(), static_cast<unsigned long long>(message.memory_limit), static_cast<unsigned long long>(used));
  } else {
    log(LogLevel::kInfo, "the memory limit on GPU %d is %llu bytes now", device_.ordinal(),
        static_cast<unsigned long long>(message.memory_limit));
  }
}

}  // namespace nvshare::interposer
