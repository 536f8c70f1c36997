#include "scheduler/engine/policy_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <variant>

namespace nvshare::scheduler {
namespace {

using namespace protocol;

uint32_t idle_us(policy::Duration idle) { return static_cast<uint32_t>(std::clamp<policy::Duration>(idle / 1000, 0, kIdleReleaseUsMax)); }

Contention contention_of(const policy::SendContention& action) {
  return {action.waiters,
          action.memory_waiters,
          static_cast<uint64_t>(action.swap_cost),
          action.limited ? kLimitedCompute : 0,
          idle_us(action.idle_release),
          static_cast<uint8_t>(action.gang_runs),
          {},
          idle_us(action.pause),
          static_cast<uint8_t>(action.held),
          {}};
}

spdlog::level::level_enum level_of(policy::Note::Level level) {
  switch (level) {
    case policy::Note::Level::kDebug:
      return spdlog::level::debug;
    case policy::Note::Level::kInfo:
      return spdlog::level::info;
    case policy::Note::Level::kWarning:
      return spdlog::level::warn;
  }
  return spdlog::level::debug;
}

}  // namespace

void PolicyDriver::apply(const policy::Event& event, policy::Instant now) {
  perform(steps_.step(event, now));
  steps_.record(event, now);
}

void PolicyDriver::apply(const std::vector<policy::Event>& events, policy::Instant now) {
  for (const policy::Event& event : events) apply(event, now);
}

void PolicyDriver::perform(const policy::Actions& actions) {
  struct Performer {
    PolicyDriver& driver;
    const Neighbours& at;
    void operator()(const policy::SendLock& a) const {
      at.believed.granted(a.client, a.budget);
      at.messenger.send_to(a.client, LockOk{{driver.epoch_, a.grant}, static_cast<uint64_t>(a.budget), a.budget_sequence});
    }
    void operator()(const policy::SendDrop& a) const {
      at.messenger.send_to(a.client, DropLock{{driver.epoch_, a.grant}, a.attempt, a.together, {}, a.tells_end, {}});
    }
    void operator()(const policy::SendKeep& a) const { at.messenger.send_to(a.client, KeepLock{{driver.epoch_, a.grant}}); }
    void operator()(const policy::SendEvict& a) const {
      if (RegisteredClient* client = at.clients.find(a.client)) client->leaving = {a.eviction, a.bytes, 0};
      at.messenger.send_to(a.client, Evict{a.eviction, static_cast<uint64_t>(a.bytes)});
    }
    void operator()(const policy::SendWait& a) const { at.messenger.send_to(a.client, WaitForMem{a.request}); }
    void operator()(const policy::SendMemory& a) const {
      at.believed.granted(a.client, a.budget);
      at.messenger.send_to(a.client, MemAvailable{a.request, a.granted, {}, static_cast<uint64_t>(a.budget), a.budget_sequence});
    }
    void operator()(const policy::SendContention& a) const { at.messenger.send_to(a.client, contention_of(a)); }
    void operator()(const policy::SendAskProgress& a) const {
      at.messenger.send_to(a.client, AskProgress{a.question, static_cast<uint8_t>(a.counts), {}});
    }
    void operator()(const policy::SendPrefetch& a) const {
      at.believed.promised(a);
      at.messenger.send_to(a.client, Prefetch{a.prefetch, static_cast<uint64_t>(a.budget)});
    }
    void operator()(const policy::SendCeiling& a) const {
      RegisteredClient* client = at.clients.find(a.client);
      if (client == nullptr || client->ceiling == a.ceiling) return;
      client->ceiling = a.ceiling;
      at.limits.send_limit(*client);
    }
    void operator()(const policy::Note& note) const { driver.say(note); }
  };
  for (const policy::Action& action : actions) std::visit(Performer{*this, at_}, action);
}

void PolicyDriver::say(const policy::Note& note) const {
  const auto level = level_of(note.level);
  if (!spdlog::should_log(level)) return;
  std::string about;
  if (note.gpu && *note.gpu < at_.gpus.size()) about = at_.gpus.name_of(*note.gpu) + ": ";
  const RegisteredClient* client = at_.clients.find(note.client);
  const policy::TenantId tenant = client != nullptr ? client->tenant : note.tenant;
  std::string name;
  if (const Tenant* known = at_.tenants.find(tenant)) name = fmt::format("tenant {} '{}'", tenant, known->name);
  if (client != nullptr) {
    about += fmt::format("client {} ({}, {}): ", note.client, client->program, name);
  } else if (note.client != 0) {
    about += fmt::format("client {}: ", note.client);
  } else if (!name.empty()) {
    about += name + ": ";
  }
  spdlog::log(level, "{}{}", about, note.text);
}

}  // namespace nvshare::scheduler
