// Compute limits: what a tenant keeps of its speed beside others. The driver's switching between programs that run together loses about a
// tenth of the GPU's time, so that a tenant which is billed half of it gets less than half of its own speed. What is lost is not billed: a
// tenant's submissions of each turn are compared with the time that it ran alone in the turn, and with its part of the time that it ran
// with others. No more than kKeptLeast says is believed, because a program that lies could have more of the GPU for it.
#include <algorithm>

#include "policy/limits/limits.h"

namespace nvshare::policy {
namespace {

constexpr int64_t kKeptLeast = kWholeGpu * 8 / 10;
constexpr int64_t kMicrosecond = 1'000;
constexpr int64_t kMemory_us = 4'000'000;  // of turns: older ones count less than half
constexpr int64_t kTurnMost_us = 1'000'000;
constexpr int64_t kTurnLeast_us = 200;
constexpr uint64_t kWorkOfTurnMost = 1 << 18;  // of a turn
constexpr int64_t kWorkUnit = 64;              // of one submission, so that few of them are not rounded away
constexpr int64_t kKnownAfter_us = 20'000;

void remember(Overlap& overlap, int64_t alone, int64_t shared, int64_t work) {
  const int64_t turn = alone + shared;  // the weight of a turn is its length, so that of its products is one over that
  const auto add = [turn](int64_t& sum, int64_t one, int64_t other) { sum += one * other / turn - sum / 64 * turn / (kMemory_us / 64); };
  add(overlap.alone_alone, alone, alone);
  add(overlap.alone_shared, alone, shared);
  add(overlap.shared_shared, shared, shared);
  add(overlap.alone_work, alone, work);
  add(overlap.shared_work, shared, work);
}

// Turns of one kind only say nothing about the other.
void estimate(Overlap& overlap) {
  const int64_t product = overlap.alone_alone * overlap.shared_shared;
  const int64_t differs = product - overlap.alone_shared * overlap.alone_shared;
  if (std::min(overlap.alone_alone, overlap.shared_shared) < kKnownAfter_us || differs < product / 50) return;
  const int64_t speed_alone = overlap.shared_shared * overlap.alone_work - overlap.alone_shared * overlap.shared_work;
  const int64_t speed_shared = overlap.alone_alone * overlap.shared_work - overlap.alone_shared * overlap.alone_work;
  if (speed_alone <= 0) return;
  const int64_t kept = std::max<int64_t>(speed_shared, 0) / std::max<int64_t>(speed_alone / 1000, 1) * (kWholeGpu / 1000);
  overlap.kept = std::clamp(kept, kKeptLeast, kWholeGpu);
}

}  // namespace

void note_overlap(Overlap& overlap, Duration time, int64_t running) {
  if (running <= 1) {
    overlap.alone += time;
  } else {
    overlap.shared += time / running;
  }
}

void learn_overlap(const Context& context, const Gpu& gpu, const Client& client, std::optional<Duration> used, uint64_t work) {
  Account* const account = client.indexed.tenancy->account;
  if (!gpu.quota.limited || account == nullptr || !client.turn.start) return;
  Overlap& overlap = account->overlap;
  if (client.indexed.tenancy->does.works > 1) {
    overlap.mixed = true;
    return;
  }
  const bool whole = !std::exchange(overlap.mixed, false) && *client.turn.start <= account->slice.began;
  Duration alone = std::exchange(overlap.alone, 0), shared = std::exchange(overlap.shared, 0);
  if (!whole || !used || work == 0) return;
  const Duration unused = std::clamp<Duration>(context.now - *client.turn.start - *used, 0, context.now - *client.turn.start);
  if (gpu.tenants_working > 1) {
    shared = std::max<Duration>(shared - unused / gpu.tenants_working, 0);
  } else {
    alone = std::max<Duration>(alone - unused, 0);
  }
  const int64_t alone_us = alone / kMicrosecond, shared_us = shared / kMicrosecond;
  if (alone_us + shared_us < kTurnLeast_us || alone_us + shared_us > kTurnMost_us) return;
  remember(overlap, alone_us, shared_us, static_cast<int64_t>(std::min(work, kWorkOfTurnMost)) * kWorkUnit);
  estimate(overlap);
}

}  // namespace nvshare::policy
