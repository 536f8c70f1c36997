// The client's part in its tenant's memory limit: a lease of headroom that grows and shrinks by messages (protocol/messages.h).
#include <stdio.h>

#include "interposer/link/client.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kLook_ns = 500 * kMillisecond;             // for the program's end
constexpr int64_t kAlonePatience_ns = 2'000 * kMillisecond;  // without a scheduler: as long as a restart takes

}  // namespace

void Client::after_registration() {
  send(protocol::About{NVSHARE_VERSION});
  if (keeps_.why[0] != '\0') send(keeps_);
  // What was taken meanwhile.
  const uint64_t leased = device_.limit().leased();
  if (leased > told_lease_) send(protocol::HeadroomTaken{leased - told_lease_});
  step(turn::Introduced{});
}

void Client::keeps_memory(const char* why) {
  Lock lock(mutex_);
  snprintf(keeps_.why, sizeof keeps_.why, "%s", why);
  send(keeps_);
}

void Client::carry_out(const turn::AskHeadroom& effect) {
  const uint64_t returned = device_.limit().lease().give_back(protocol::kLeaseMax);
  headroom_asks_.fetch_add(1, std::memory_order_relaxed);
  send(protocol::AskHeadroom{effect.request, effect.bytes, returned});
}
void Client::carry_out(const turn::GrowLease& effect) { device_.limit().lease().grow_charged(effect.bytes, effect.charged); }
void Client::carry_out(const turn::TryLease& effect) { step(turn::LeaseTried{device_.limit().lease().charge(effect.bytes)}); }

bool Client::charge(size_t bytes) {
  using Answer = turn::Headroom::Answer;
  if (device_.limit().lease().charge(bytes)) [[likely]]
    return true;
  if (!shared() || bytes > protocol::kLeaseMax) return false;
  Lock lock(mutex_);
  while (turn_.headroom.answer != Answer::kNone) changed_.wait(mutex_);  // of another thread
  if (device_.limit().lease().charge(bytes)) return true;
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
  if (device_.limit().lease().charge(bytes)) return;
  Lock lock(mutex_);
  const uint64_t taken = device_.limit().lease().take(bytes);
  if (taken > 0 && turn_.connected) send(protocol::HeadroomTaken{taken});
}

void Client::on_headroom(const protocol::Headroom& message) {
  Lock lock(mutex_);
  device_.limit().update(message);
  step(message);
}

void Client::on_recall(const protocol::RecallHeadroom& message) {
  Lock lock(mutex_);
  const uint64_t returned = device_.limit().lease().give_back(message.bytes);
  send(protocol::HeadroomReturned{message.recall, returned, device_.limit().lease().charged()});
}

}  // namespace nvshare::interposer
