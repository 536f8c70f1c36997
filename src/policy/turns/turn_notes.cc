// What the log says of turns, with the figures that it was decided from. Nothing here decides anything.
#include "policy/note_texts.h"
#include "policy/turns/turns.h"

namespace nvshare::policy {
namespace {

constexpr size_t kNamedMost = 16;

}  // namespace

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

void note_switch_time(Context& context, Gpu& gpu, const Switch& plan) {
  const Config& config = context.config();
  if (config.switch_time_mode != SwitchTimeMode::kAuto) return;
  const Duration length = switch_time(config, plan.cost);
  const Duration known = gpu.switches.noted;
  if (known != 0 && (length == known || (std::abs(length - known) < known / 10 && length > config.switch_time_min))) return;
  if (known != 0 && !is_note_due(gpu.switches.noted_at, context.now)) {
    gpu.switches.note_due = gpu.switches.noted_at + kNotePause;
    return;
  }
  gpu.switches.noted = length;
  gpu.switches.noted_at = context.now;
  const auto speed = [](Bytes bandwidth) { return bandwidth > 0 ? mib(bandwidth) + "/s measured" : mib(kBandwidthAssumed) + "/s assumed"; };
  context.note(Note::Level::kInfo, gpu, 0,
               "turns last " + seconds(length) + " while others wait: " + mib(plan.out) + " out at " + speed(gpu.link.out()) + " and " +
                   mib(plan.in) + " in at " + speed(gpu.link.in()) + " take " + seconds(plan.cost) + ", times " +
                   std::to_string(config.switch_time_multiplier) + ", within " + seconds(config.switch_time_min) + " and " +
                   seconds(config.switch_time_max));
}

void note_grant(Context& context, const Gpu& gpu, Client& client) {
  const bool due = is_note_due(client.noted.beside_at, context.now);
  if (!due && !context.config().explains) return;
  const bool alone = gpu.holders.size() == 1;
  const uint64_t hash = gpu.holders_hash - hash_of(client.id);
  const bool told = due && !alone && hash != client.noted.beside;
  if (!told && !context.config().explains) return;
  const Neighbours beside = holders_beside(gpu, client);
  const Bytes together = gpu.sums.held_needed;
  std::string text = "gets the lock, ";
  text += alone ? "alone: it needs " + mib(together) : "beside " + list_of(beside) + ": they need " + mib(together) + " together";
  context.note(told ? Note::Level::kInfo : Note::Level::kDebug, client.id,
               text + ", " + mib(safe_limit(context.config(), gpu)) + " may be used");
  if (!told) return;
  client.noted.beside = hash;
  client.noted.beside_at = context.now;
}

}  // namespace nvshare::policy
