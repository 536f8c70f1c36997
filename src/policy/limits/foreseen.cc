// Bursts that are foreseen. A program that works and pauses at even times, and asks for hardly more than what it is granted, is never held
// back; but beside a neighbour that never pauses the driver gives each of its bursts half of the GPU, so that it gets less than it was
// granted. A neighbour with a limit has to pause for a part of the time in any case: where it is not behind its limit it does so during the
// bursts. It is asked before they begin, because the work that it has in flight takes about as long as a burst (docs/adr/0027).
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "policy/clients.h"
#include "policy/limits/limits.h"

namespace nvshare::policy {
namespace {

constexpr Duration kBurstLeast = 1'500'000,
                   kBurstMost = 20'000'000;  // shorter ones are not worth a hand-over each, longer ones are no bursts
constexpr Duration kPauseLeast = 3'000'000;
constexpr Duration kEvenWithin = 250'000;   // or a sixteenth
constexpr Duration kLateMost = 1'000'000;   // then it is not a burst of those
constexpr Duration kToldWithin = 400'000;   // a program says that it pauses so long after its work has ended
constexpr Duration kSwitchTakes = 120'000;  // of a GPU from one program's work to another's (measured on an H200)
constexpr Duration kSliceMost = 2'000'000;  // a burst that begins meanwhile has nothing of the GPU (the same)
constexpr Duration kWaitMost = 500'000;     // of that is not billed
constexpr int kEvenEnough = 4,
              kEvenMost = 12;     // a pause of another length takes as many as four even ones bring
constexpr int kSharedEnough = 4;  // bursts beside others in a row, before they tell how long one takes by itself

// Bursts whose sum is far more than what is granted are held back by the limit, and these pauses do as well.
bool is_worth_it(const Account& account) {
  const Rhythm& rhythm = account.rhythm;
  if (rhythm.even < kEvenEnough || rhythm.on < kBurstLeast || rhythm.on > kBurstMost) return false;
  if (rhythm.off < kPauseLeast || rhythm.off > kPauseMost) return false;
  return rhythm.on * 100 <= percent_of(rhythm.on + rhythm.off, account.limit.reserved) * 9 / 8 * 100;
}

// What the burst under way has had of the GPU.
Duration own_of(const Account& account) { return account.overlap.alone + portion(account.overlap.shared, account.overlap.kept); }

void note_evenness(Rhythm& rhythm, bool even) {
  rhythm.even = even ? std::min(rhythm.even + 1, kEvenMost) : std::max(rhythm.even - kEvenEnough, 0);
}

void forget(Account& account) {
  account.rhythm.begins = account.rhythm.ends = account.rhythm.began = 0;
  account.rhythm.foreseen = false;
}

}  // namespace

void note_burst_ended(const Context& context, Gpu& gpu, const Client& client, std::optional<Duration> used) {
  Account* const account = client.indexed.tenancy->account;
  if (!gpu.quota.limited || account == nullptr || account->limit.reserved == 0 || !client.turn.start) return;
  Rhythm& rhythm = account->rhythm;
  rhythm.ended = 0;
  if (!used || client.indexed.tenancy->clients.size() != 1) return;
  const Duration took = std::clamp<Duration>(*used, 0, context.now - *client.turn.start);
  rhythm.ended = *client.turn.start + took;
  const Duration unused = context.now - rhythm.ended;
  const Duration waited = std::min(std::exchange(rhythm.waited, 0), took / 4);
  note_change(gpu.quota, *account);
  take_back(*account, waited);
  const Duration own =
      std::max<Duration>(own_of(*account) - unused / std::max<int64_t>(gpu.tenants_working, 1) - std::min(waited, kSwitchTakes), 0);
  // What a burst has beside a neighbour that has yet to drain is a guess, and often next to nothing.
  rhythm.shared = account->overlap.shared * 8 > took ? std::min(rhythm.shared + 1, kSharedEnough) : 0;
  if (rhythm.on == 0 || rhythm.shared == 0 || rhythm.shared == kSharedEnough) rhythm.on += (own - rhythm.on) / (rhythm.on == 0 ? 1 : 4);
  rhythm.begins = rhythm.ends = rhythm.began = 0;
  if (!is_worth_it(*account)) return;
  rhythm.begins = rhythm.ended + rhythm.off;
  if (!std::exchange(rhythm.foreseen, true)) gpu.quota.changes.foreseen.push_back(account);
}

void note_burst_begins(const Context& context, const Client& client) {
  Account* const account = client.indexed.tenancy->account;
  if (account == nullptr || account->rhythm.ended == 0) return;
  Rhythm& rhythm = account->rhythm;
  const Duration off = context.now - std::exchange(rhythm.ended, 0);
  const bool even = std::abs(off - rhythm.off) <= std::max(rhythm.off / 16, kEvenWithin);
  note_evenness(rhythm, even);
  if (even) rhythm.off += (off - rhythm.off) / 4;
  if (rhythm.even == 0) rhythm.off = off;
  if (rhythm.begins == 0) return;
  rhythm.began = context.now;
  rhythm.ends = context.now + rhythm.on;
}

void look_at_foreseen(Context& context, Gpu& gpu) {
  if (gpu.quota.changes.foreseen.empty()) return;
  const Exclusive is_exclusive(context.config(), gpu);
  std::erase_if(gpu.quota.changes.foreseen, [&](Account* account) {
    Rhythm& rhythm = account->rhythm;
    const bool begun = rhythm.ends != 0;
    if (begun) {
      const Duration rest = rhythm.on + rhythm.on / 8 + kToldWithin - own_of(*account);
      rhythm.ends = std::min(context.now + rest * std::max<int64_t>(gpu.tenants_working, 1), rhythm.begins + kLateMost + 2 * rhythm.on);
    }
    const Instant until = begun ? rhythm.ends : rhythm.begins + kLateMost;
    const bool goes_on = account->does.stays > 0 && begun == (account->does.works > 0) && !account->throttled && !is_exclusive(*account);
    if (rhythm.begins != 0 && goes_on && context.now + kStepMin < until) {
      context.wake(gpu, until);
      return false;
    }
    if (goes_on && !begun) note_evenness(rhythm, false);
    forget(*account);
    return true;
  });
}

std::optional<Instant> makes_way_from(const Context& context, const Gpu& gpu, Account& as_billed) {
  const Quota& quota = gpu.quota;
  if (quota.full_demand || quota.mode == GpuMode::kRotation || is_windowed(context.config(), gpu)) return std::nullopt;
  const Account account = unranked(quota, as_billed);
  if (!account.limit.has_ceiling() || account.gang) return std::nullopt;
  const Duration enough = half_band(context.config(), gpu, account, account.limit.ceiling_rate());
  const Duration behind = enough + percent_of(quota.period, account.limit.ceiling) / 8;
  as_billed.way.behind = account.ceiling_balance > (account.way.behind ? enough : behind);
  if (as_billed.way.behind) return std::nullopt;
  // Its work in flight ends in time in most cases, where it has time enough for that, else in half of them.
  const Duration margin = account.ceiling_balance <= enough ? account.way.differs : 0;
  std::optional<Instant> from;
  for (const Account* other : quota.changes.foreseen) {
    const Duration lead_most = other->rhythm.off - kTurnWorth - kToldWithin;
    if (other->ceiling_balance <= 0 || other->tenant == account.tenant || account.way.drains >= lead_most) continue;
    const Instant begins = other->rhythm.begins - std::min(account.way.drains + margin, lead_most);
    from = std::min(from.value_or(begins), begins);
  }
  return from;
}

void note_drop_asked(const Context& context, const Gpu& gpu, Account& account) {
  account.way.asked_at = context.now;
  if (gpu.tenants_working > 1) account.way.asked_at.reset();
}

// Of one that was asked while nobody else worked. If a burst begins before its work has ended, that goes on as if it was alone, and so does
// the GPU's switch to the burst (recorded on an H200): all of the time counts, and is not the burst's.
void learn_drain(const Context& context, Gpu& gpu, const Client& client) {
  Account* const account = client.indexed.tenancy->account;
  if (account == nullptr || !account->way.asked_at) return;
  MakingWay& way = account->way;
  const Duration drained = std::clamp<Duration>(context.now - *std::exchange(way.asked_at, std::nullopt), 0, kBurstMost);
  way.differs += (std::abs(drained - way.drains) - way.differs) / 4;
  way.drains += (drained - way.drains) / 4;
  bool made_way = false;
  for (Account* other : gpu.quota.changes.foreseen) {
    Rhythm& rhythm = other->rhythm;
    const Duration beside = rhythm.began == 0 ? 0 : context.now - rhythm.began;
    const bool is_due = rhythm.began != 0 || rhythm.begins - context.now < kPauseLeast;
    if (other == account || !is_due || beside > kSliceMost) continue;
    rhythm.waited = kSwitchTakes + portion(std::min(beside, kWaitMost), billing_rate(context.config(), gpu, *other));
    made_way = true;
  }
  if (!made_way) return;
  note_change(gpu.quota, *account);
  take_back(*account, kSwitchTakes);  // that back to it
}

}  // namespace nvshare::policy
