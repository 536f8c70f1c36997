// What the log says of limits, with the figures that it was decided from. Nothing here decides anything.
#include "policy/limits/limits.h"
#include "policy/note_texts.h"

namespace nvshare::policy {
namespace {

using Level = Note::Level;

std::string owes(const Account& account) { return "owes " + ms(std::max<Duration>(-account.ceiling_balance, 0)); }

std::string text_of(const CoreLimit& limit) {
  if (limit.ceiling == 100 && limit.reserved == 0) return "none";
  std::string ceiling = std::to_string(limit.ceiling) + " %";
  if (limit.reserved == limit.ceiling) return ceiling;
  return ceiling + (limit.reserved == 0 ? " as a ceiling" : ", of which " + std::to_string(limit.reserved) + " % are reserved");
}

}  // namespace

const char* name_of(GpuMode mode) {
  switch (mode) {
    case GpuMode::kUnlimited:
      return "unlimited";
    case GpuMode::kTogether:
      return "together";
    case GpuMode::kTurns:
      return "turns";
    case GpuMode::kRotation:
      return "rotation";
  }
  return "?";
}

void note_throttled(Context& context, const Gpu& gpu, Account& account) {
  ++account.throttling.notes.unnoted;
  account.throttling.notes.noted = is_note_due(account.throttling.notes.at, context.now);
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
  if (scale == quota.scale_noted || !is_note_due(quota.scale_noted_at, context.now)) return;
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
  const bool due = windowed && is_note_due(quota.window_noted_at, context.now);
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

}  // namespace nvshare::policy
