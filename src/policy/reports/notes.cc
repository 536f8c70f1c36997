// What the log says of routine decisions, with the figures that they were made from. Nothing here decides anything.
#include "policy/limits/limits.h"
#include "policy/reports/reports.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

using Level = Note::Level;

constexpr size_t kNamedMost = 16;

std::string ms(Duration time) {
  const Duration tenths = time / (kMillisecond / 10);
  return std::to_string(tenths / 10) + (tenths % 10 != 0 ? "." + std::to_string(std::abs(tenths % 10)) : "") + " ms";
}

std::string seconds(Duration time) {
  const Duration tenths = (time + kSecond / 20) / (kSecond / 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

std::string percent(int64_t millionths) {
  const int64_t tenths = (millionths + 500) / 1000;
  return std::to_string(tenths / 10) + (tenths % 10 != 0 ? "." + std::to_string(tenths % 10) : "") + " %";
}

std::string owes(const Account& account) { return "owes " + ms(std::max<Duration>(-account.ceiling_balance, 0)); }

std::string text_of(const CoreLimit& limit) {
  if (limit.ceiling == 100 && limit.reserved == 0) return "none";
  std::string ceiling = std::to_string(limit.ceiling) + " %";
  if (limit.reserved == limit.ceiling) return ceiling;
  return ceiling + (limit.reserved == 0 ? " as a ceiling" : ", of which " + std::to_string(limit.reserved) + " % are reserved");
}

bool is_due(Instant noted_at, Instant now) { return noted_at == 0 || now - noted_at >= kNotePause; }

// The first of them are enough to be named.
struct Neighbours {
  std::vector<ClientId> first;
  size_t all = 0;
};

Neighbours holders_beside(const Gpu& gpu, const Client& client) {
  Neighbours beside{{}, gpu.holders.size() - (client.holds_lock() ? 1 : 0)};
  if (beside.all > 4 * kNamedMost) {  // then some of them come soon
    for (auto at = gpu.clients.begin(); at != gpu.clients.end() && beside.first.size() < kNamedMost; ++at) {
      if (at->second.holds_lock() && at->first != client.id) beside.first.push_back(at->first);
    }
    return beside;
  }
  for (const auto& [grant, other] : gpu.holders) {
    if (other->id != client.id) beside.first.push_back(other->id);
  }
  std::sort(beside.first.begin(), beside.first.end());
  beside.first.resize(std::min(beside.first.size(), kNamedMost));
  return beside;
}

std::string list_of(const Neighbours& clients) {
  std::string text;
  for (const ClientId id : clients.first) text += (text.empty() ? "" : ", ") + std::to_string(id);
  if (clients.all > clients.first.size()) text += " and " + std::to_string(clients.all - clients.first.size()) + " more";
  return (clients.all == 1 ? "client " : "clients ") + text;
}

}  // namespace

void note_throttled(Context& context, const Gpu& gpu, Account& account) {
  ++account.throttling.notes.unnoted;
  account.throttling.notes.noted = is_due(account.throttling.notes.at, context.now);
  if (!account.throttling.notes.noted && !context.config().explains) return;
  const Duration window = window_of(context.config(), gpu);
  std::string text = "throttled: used " + ms(account.consumed.in_window) + " of " + ms(portion(window, account.quota)) +
                     " in this window of " + ms(window) + ", limit " + std::to_string(account.limit.ceiling) + " %, in force " +
                     percent(account.quota) + "; " + owes(account);
  if (account.throttling.notes.unnoted > 1)
    text += " (" + std::to_string(account.throttling.notes.unnoted) + " times since the last such line)";
  context.note(account.throttling.notes.noted ? Level::kInfo : Level::kDebug, gpu, account.tenant, std::move(text));
  if (!account.throttling.notes.noted) return;
  account.throttling.notes.at = context.now;
  account.throttling.notes.unnoted = 0;
}

void note_released(Context& context, const Gpu& gpu, Account& account) {
  if (!account.throttling.notes.noted && !context.config().explains) return;
  context.note(account.throttling.notes.noted ? Level::kInfo : Level::kDebug, gpu, account.tenant,
               "may run again, after " + ms(context.now - account.throttling.at) + ", limit " + std::to_string(account.limit.ceiling) +
                   " %, in force " + percent(account.quota) + "; " + owes(account));
  account.throttling.notes.noted = false;
}

void note_limit(Context& context, const Gpu& gpu, const Account& account, const CoreLimit& former) {
  context.note(Level::kInfo, gpu, account.tenant,
               "compute limit " + text_of(account.limit) + " now (was " + text_of(former) + "); used " + ms(account.consumed.in_window) +
                   " in this window, owes " +
                   ms(std::max<Duration>(account.limit.has_ceiling() ? -account.ceiling_balance : 0, account.lifted.owed)) +
                   ", which stays");
}

void note_scale(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  int64_t sum = 0, most = kWholeGpu;
  for (const Account& account : quota.accounts) {
    if (!account.active) continue;
    sum += account.limit.reserved * (kWholeGpu / 100);
    if (account.limit.reserved == 0) most = kWholeGpu - kRestLeast;
  }
  const int64_t scale = sum > most ? most * (kWholeGpu / 100) / (sum / 100) : kWholeGpu;
  quota.scaled_as_noted = scale == quota.scale_noted;
  if (scale == quota.scale_noted || !is_due(quota.scale_noted_at, context.now)) return;
  const bool none_before = quota.scale_noted == kWholeGpu;
  quota.scale_noted = scale;
  quota.scale_noted_at = context.now;
  if (scale == kWholeGpu) return context.note(Level::kInfo, gpu, 0, "compute reservations are in force as they are, no longer scaled");
  std::string text = "compute reservations of the active tenants add up to " + percent(sum) + " of " + percent(most) + ": each is scaled";
  for (const Account& account : quota.accounts) {
    if (account.active && account.limit.reserved > 0)
      text +=
          ", tenant " + std::to_string(account.tenant) + " " + std::to_string(account.limit.reserved) + " % to " + percent(account.quota);
  }
  context.note(Level::kInfo, gpu, 0, text + (none_before ? "" : " (was scaled otherwise)"));
}

void note_window(Context& context, Gpu& gpu, Duration length) {
  Quota& quota = gpu.quota;
  const bool windowed = is_windowed(context.config(), gpu);  // else nothing begins anew: balances go on
  const bool due = windowed && is_due(quota.window_noted_at, context.now);
  if (!due && !context.config().explains) return;
  std::string text = (windowed ? "window reset after " : "figures of the last ") + ms(length);
  for (const Account& account : quota.accounts) {
    text += ", tenant " + std::to_string(account.tenant) + " used " + ms(account.consumed.in_window) + " of " +
            ms(portion(length, account.quota));
    if (account.balance < 0) text += " and " + owes(account);
  }
  context.note(due ? Level::kInfo : Level::kDebug, gpu, 0, std::move(text));
  if (due) quota.window_noted_at = context.now;
}

void note_mode(Context& context, const Gpu& gpu, GpuMode former) {
  const Quota& quota = gpu.quota;
  int64_t present = 0, gappy = 0;
  for (const Account& account : quota.accounts) {
    present += account.present;
    gappy += account.present && account.slice.gappy;
  }
  std::string why;
  switch (quota.mode) {
    case GpuMode::kUnlimited:
      why = "no tenant here has a compute limit";
      break;
    case GpuMode::kRotation:
      why = "the memory of its tenants does not fit together; one rotation takes " + ms(quota.period);
      break;
    case GpuMode::kTurns:
      why = std::to_string(present - gappy) + " tenants keep it busy" + (quota.over_asked ? ", their limits pass 100 % in sum" : "") +
            "; each has its share in " + ms(quota.period);
      break;
    case GpuMode::kTogether:
      why = present < 2 ? "one tenant is there"
            : gappy > 0 ? std::to_string(gappy) + " of " + std::to_string(present) + " tenants leave gaps for others"
                        : std::string("so the scheduling mode has it");
      break;
  }
  context.note(Level::kInfo, gpu, 0,
               std::string("programs share its time in mode ") + name_of(quota.mode) + " now (was " + name_of(former) + "): " + why +
                   " (scheduling mode " + std::string(context.config().scheduling_mode.name) + ")");
}

void note_switch_time(Context& context, Gpu& gpu, const Switch& plan) {
  const Config& config = context.config();
  if (config.switch_time_mode != SwitchTimeMode::kAuto) return;
  const Duration length = switch_time(config, plan.cost);
  const Duration known = gpu.switches.noted;
  if (known != 0 && (length == known || (std::abs(length - known) < known / 10 && length > config.switch_time_min) ||
                     !is_due(gpu.switches.noted_at, context.now)))
    return;
  gpu.switches.noted = length;
  gpu.switches.noted_at = context.now;
  const auto speed = [](Bytes bandwidth) { return bandwidth > 0 ? mib(bandwidth) + "/s measured" : mib(kBandwidthAssumed) + "/s assumed"; };
  context.note(Level::kInfo, gpu, 0,
               "turns last " + seconds(length) + " while others wait: " + mib(plan.out) + " out at " + speed(gpu.link.out()) + " and " +
                   mib(plan.in) + " in at " + speed(gpu.link.in()) + " take " + seconds(plan.cost) + ", times " +
                   std::to_string(config.switch_time_multiplier) + ", within " + seconds(config.switch_time_min) + " and " +
                   seconds(config.switch_time_max));
}

void note_grant(Context& context, const Gpu& gpu, Client& client) {
  const bool due = is_due(client.noted.beside_at, context.now);
  if (!due && !context.config().explains) return;
  const bool alone = gpu.holders.size() == 1;
  const uint64_t hash = gpu.holders_hash - hash_of(client.id);
  const bool told = due && !alone && hash != client.noted.beside;
  if (!told && !context.config().explains) return;
  const Neighbours beside = holders_beside(gpu, client);
  const Bytes together = gpu.sums.held_needed;
  std::string text = "gets the lock, ";
  text += alone ? "alone: it needs " + mib(together) : "beside " + list_of(beside) + ": they need " + mib(together) + " together";
  context.note(told ? Level::kInfo : Level::kDebug, client.id, text + ", " + mib(safe_limit(context.config(), gpu)) + " may be used");
  if (!told) return;
  client.noted.beside = hash;
  client.noted.beside_at = context.now;
}

void note_wait(Context& context, const Gpu& gpu, Client& client) {
  const bool for_limit =
      client.wait.reason == WaitReason::kLimit || client.wait.reason == WaitReason::kShare;  // what is throttled has a line
  const bool told = !for_limit && client.wait.reason != WaitReason::kNone && is_due(client.noted.wait_at, context.now);
  if (!told && !context.config().explains) return;
  client.noted.reason = client.wait.reason;
  if (told) client.noted.wait_at = context.now;
  recount(client);
  const Neighbours holders = holders_beside(gpu, client);
  std::string text = "waits for " + waiting_sentence(context.state, gpu, client);
  if (holders.all > 0) text += "; " + list_of(holders) + (holders.all == 1 ? " has" : " have") + " the lock";
  context.note(told ? Level::kInfo : Level::kDebug, client.id, std::move(text));
}

}  // namespace nvshare::policy
