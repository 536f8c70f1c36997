#include "interposer/memory/limits/memory_limit.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "base/amount.h"
#include "interposer/log.h"
#include "interposer/memory/limits/own_limit.h"

namespace nvshare::interposer {

namespace {
constexpr int64_t kRefusalPause_ns = 10'000'000'000;  // between two lines about allocations past the limit
}  // namespace

bool MemoryLimit::read_own() {
  bool right = true;
  const OwnLimit limit = own_memory_limit([&](const char* variable, const char* why) {
    log(LogLevel::kError, "%s: %s", variable, why);
    right = false;
  });
  own_ = limit.bytes;
  own_variable_ = limit.variable;
  if (own_ != 0) bytes_.store(own_, std::memory_order_release);
  return right;
}

const char* MemoryLimit::set_by(uint64_t limit) const {
  if (limit == 0) return "nobody";
  if (limit == node_) return "the node (nvsharectl or Kubernetes)";
  return limit == own_ ? own_variable_ : "another program of its tenant";
}

uint64_t MemoryLimit::by_node() {
  Lock lock(mutex_);
  return node_;
}

uint64_t MemoryLimit::leased() const { return std::min(lease_.leased(), protocol::kLeaseMax); }

void MemoryLimit::alone() {
  const uint64_t most = own_ != 0 ? std::min(own_, protocol::kLeaseMax) : protocol::kLeaseMax;
  if (lease_.leased() < most) lease_.grow(most - lease_.leased());
}

void MemoryLimit::set_ceiling(size_t ceiling) {
  const size_t before = ceiling_.exchange(ceiling, std::memory_order_acq_rel);
  if (ceiling < before && before != SIZE_MAX) ceilings_.fell_from(before, now_ns());
}

bool MemoryLimit::may_rise_to(size_t bytes, CeilingWait* wait) {
  Lock lock(mutex_);
  return wait->goes_on(ceilings_, bytes, now_ns());
}

void MemoryLimit::set(const protocol::Registered& terms) {
  bytes_.store(terms.memory_limit, std::memory_order_release);
  others_charged_.store(terms.others_charged, std::memory_order_release);
  gpu_total_.store(terms.gpu_total_bytes, std::memory_order_release);
  Lock lock(mutex_);
  set_ceiling(terms.memory_ceiling);
  node_ = terms.node_limit;
  tenant_ = terms.tenant;
  memcpy(tenant_name_, terms.tenant_name, sizeof tenant_name_);
}

void MemoryLimit::update(const protocol::Headroom& message) {
  bytes_.store(message.limit, std::memory_order_release);
  others_charged_.store(message.others_charged, std::memory_order_release);
}

void MemoryLimit::update(const protocol::UpdateLimit& message) {
  const uint64_t before = bytes_.exchange(message.memory_limit, std::memory_order_acq_rel);
  {
    Lock lock(mutex_);
    node_ = message.node_limit;
    set_ceiling(message.memory_ceiling);
  }
  others_charged_.store(message.others_charged, std::memory_order_release);
  if (before == message.memory_limit) return;
  const uint64_t used = tenant_charged();
  if (message.memory_limit == 0) {
    log(LogLevel::kInfo, "no memory limit holds on GPU %s any more", gpu_.text());
  } else if (used > message.memory_limit) {
    log(LogLevel::kWarning,
        "the memory limit on GPU %s is %s now, and %s are in use: they stay, and nothing more is allocated until less is in use",
        gpu_.text(), amount(message.memory_limit).text, amount(used).text);
  } else {
    log(LogLevel::kInfo, "the memory limit on GPU %s is %s now", gpu_.text(), amount(message.memory_limit).text);
  }
}

// Once it is known whether there is a scheduler.
void MemoryLimit::log_limit() {
  Lock lock(mutex_);
  const uint64_t limit = bytes_.load(std::memory_order_relaxed);
  if (limit == 0) {
    log(LogLevel::kInfo, "GPU %s: no memory limit, tenant %llu '%s'", gpu_.text(), static_cast<unsigned long long>(tenant_), tenant_name_);
  } else {
    log(LogLevel::kInfo, "GPU %s: memory limit %s, set by %s, tenant %llu '%s'", gpu_.text(), amount(limit).text, set_by(limit),
        static_cast<unsigned long long>(tenant_), tenant_name_);
  }
}

void MemoryLimit::log_refusal(const char* what, size_t bytes, size_t unit, size_t small_unit) {
  refusals_unlogged_.fetch_add(1, std::memory_order_relaxed);
  const int64_t now = now_ns();
  int64_t due = refusal_due_ns_.load(std::memory_order_relaxed);
  if (now < due || !refusal_due_ns_.compare_exchange_strong(due, now + kRefusalPause_ns, std::memory_order_relaxed)) return;
  const uint64_t refused = refusals_unlogged_.exchange(0, std::memory_order_relaxed);
  const uint64_t limit = this->bytes();
  const uint64_t own = charged();
  const uint64_t all = tenant_charged();
  const char* setter;
  uint64_t tenant;
  char tenant_name[sizeof tenant_name_];
  {
    Lock lock(mutex_);
    setter = set_by(limit);
    tenant = tenant_;
    memcpy(tenant_name, tenant_name_, sizeof tenant_name);
  }
  char more[64] = "";
  if (refused > 1) snprintf(more, sizeof more, "; %llu were refused since the last such line", static_cast<unsigned long long>(refused));
  // Without the mutex: a write to the program's standard error may block.
  log(LogLevel::kWarning,
      "GPU %s: %s of %s was refused: in use %s (this program %s, others of its tenant %s), memory limit %s, set by %s, "
      "tenant %llu '%s', counted in units of %s, small allocations of %s; CUDA contexts do not count%s",
      gpu_.text(), what, amount(bytes).text, amount(all).text, amount(own).text, amount(all - own).text, amount(limit).text, setter,
      static_cast<unsigned long long>(tenant), tenant_name, amount(unit).text, amount(small_unit).text, more);
}

}  // namespace nvshare::interposer
