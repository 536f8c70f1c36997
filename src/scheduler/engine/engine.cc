#include "scheduler/engine/engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "policy/parts.h"
#include "protocol/short_names.h"

namespace nvshare::scheduler {
namespace {

Departures::IsAlive alive_by(StartTimeOf start_time_if_alive) {
  return [start_time_if_alive = std::move(start_time_if_alive)](pid_t pid, uint64_t start_time) {
    return pid > 0 && start_time != 0 && start_time_if_alive(pid) == start_time;
  };
}

// `text` names no tenant, or several. Of a long list its beginning is said.
Error not_one_of(const Tenants& tenants, const std::string& text) {
  constexpr size_t kBytesMax = 200;
  std::string all, same;
  const auto add = [](std::string& list, const Tenant& tenant) {
    if (list.size() < kBytesMax) list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", tenant.name, tenant.id);
  };
  for (const auto& [key, tenant] : tenants.all()) {
    add(all, tenant);
    if (tenant.name == text || protocol::is_short_name(tenant.kind, tenant.name, text)) add(same, tenant);
  }
  if (!same.empty()) return error_format("several tenants are called '%.80s': %s; name one by its id", text.c_str(), same.c_str());
  return error_format("there is no tenant '%.80s'; there are: %s", text.c_str(), all.empty() ? "none" : all.c_str());
}

}  // namespace

Engine::Engine(Options options, Transport& transport, policy::Instant now)
    : settings_(std::move(options.settings)),
      started_(now),
      transport_(transport),
      hooks_(std::move(options.hooks)),
      gpus_(options.gpus, options.gpus_most),
      known_(options.known_clients_file, options.start_time_if_alive),
      tenants_(options.tenants_file, options.look_at_cgroups ? options.look_at_cgroups : cgroups_of, options.cgroup_reader,
               options.start_time_of),
      policy_({clients_, gpus_, tenants_, messenger_, believed_, limits_}, options.epoch, settings_.policy, std::move(options.trace)),
      departures_(known_, alive_by(options.start_time_if_alive)),
      host_({settings_, clients_, gpus_, messenger_, warnings_, policy_},
            {std::move(options.look_at_host), std::move(options.host_memory_of), std::move(options.new_segment_id), options.segment_maker},
            alive_by(options.start_time_if_alive)),
      absent_({settings_, known_, clients_, gpus_, tenants_, limits_, departures_, believed_, looks_, policy_},
              alive_by(options.start_time_if_alive)),
      membership_({settings_, clients_,   gpus_,   known_,  tenants_,      usage_totals_, departures_, limits_,  host_,    reports_,
                   believed_, messenger_, policy_, absent_, housekeeping_, accounts_,     orders_,     sharing_, exports_, warnings_},
                  alive_by(options.start_time_if_alive)) {
  for (const std::string& problem : {known_.problem(), tenants_.problem()}) {
    if (!problem.empty()) spdlog::warn("{}", problem);
  }
  for (const auto& [id, client] : known_.missing()) {
    if (Tenant* tenant = tenants_.find(client.tenant)) ++tenant->awaited;
    tenants_.keep_id(client.tenant);
  }
  for (const auto& [id, client] : known_.ended()) departures_.absent_ended(id, gpus_, now);
  if (!options.tenants_file.empty()) tenants_.save_later();
  absent_.await(settings_.restart_grace, now);
  host_.look(now);
}

Engine::~Engine() = default;

void Engine::take_swap(Client& client, const protocol::SwapProgress& message, policy::Instant now) {
  using protocol::SwapDirection;
  const int64_t resident_before = bounded(client.memory.resident);
  const int64_t used_more = reports_.take(client, message.memory, now);
  const bool in_segments = client.backend != protocol::Backend::kManaged;
  warn_of_swap(client, message, now);
  const auto direction = static_cast<SwapDirection>(message.direction);
  if (direction == SwapDirection::kOut && message.id == client.leaving.eviction)
    client.leaving.told = message.finished != 0 ? client.leaving.asked : bounded(message.moved);
  apply(policy::SwapProgressed{client.id, direction == SwapDirection::kOut, message.finished != 0, message.failed != 0, message.id,
                               bounded(message.copied), static_cast<int64_t>(message.elapsed_ns), believed_.believe(client, message.memory),
                               bounded(message.unchanged), direction == SwapDirection::kAhead,
                               in_segments ? std::optional(used_more) : std::nullopt},
        now);
  believed_.prefetched(client, message);
  host_.moved(client, used_more, resident_before, now);
}

void Engine::warn_of_swap(const Client& client, const protocol::SwapProgress& message, policy::Instant now) {
  if (message.failed != 0 && message.direction != static_cast<uint8_t>(protocol::SwapDirection::kAhead)) {
    warnings_.warn_of(client.lines_of, "failed swap " + std::to_string(client.id), now,
                      "client {} ({}): moving memory {} after {} MiB; the rest stays", client.id, client.program,
                      message.direction == 0 ? "out failed" : "in stopped, as its turn ended or a copy failed,", message.moved >> 20);
  }
  if (message.mistaken != 0) {
    warnings_.warn_of(client.lines_of, "mistaken " + std::to_string(client.id), now,
                      "client {} ({}): memory that it took to be unchanged was not; nothing was lost, and from now on it copies all",
                      client.id, client.program);
  }
}

void Engine::request_lock(policy::ClientId client, policy::Instant now) {
  if (RestartHold& hold = absent_.hold(); hold.holds()) return hold.request_lock(client);
  apply(policy::LockRequested{client}, now);
}

void Engine::change_memory(policy::MemoryChanged event, policy::Instant now) {
  if (RestartHold& hold = absent_.hold(); hold.holds()) event = hold.change_memory(event);
  apply(event, now);
  host_.look_if_much_moved(now);
  if (const Client* client = clients_.find(event.client)) host_.prepare_swaps(client->gpu);
}

std::optional<policy::Instant> Engine::next_deadline() const {
  std::optional<policy::Instant> deadline = policy::next_deadline(policy_.state());
  for (const std::optional<policy::Instant>& other : {absent_.next_deadline(), housekeeping_.next_deadline(), host_.next_deadline(),
                                                      limits_.next_deadline(), departures_.next_deadline(settings_.policy)}) {
    if (other && (!deadline || *other < *deadline)) deadline = other;
  }
  return deadline;
}

void Engine::deadline_reached(policy::Instant now) {
  absent_.deadline_reached(now);
  housekeeping_.deadline_reached(now);
  policy_.apply(departures_.deadline_reached(settings_.policy, now), now);
  std::optional<policy::Instant> deadline = policy::next_deadline(policy_.state());
  if (deadline && *deadline <= now) apply(policy::Tick{}, now);
  host_.deadline_reached(now);
  limits_.deadline_reached(now);
}

void Engine::memory_sampled(const std::vector<GpuSample>& samples, policy::Instant now) {
  for (const GpuSample& sample : samples) {
    const std::optional<policy::GpuId> id = gpus_.find(sample.uuid);
    if (!id) continue;
    if (gpus_[*id].total > 0) {
      looks_.sampled(*id, sample, absent_.hold().holds(), now);
    } else {
      gpus_[*id].sample = sample;  // for the first client that is back after a restart
    }
    if (!absent_.hold().holds()) bypasses_.sampled(*id, sample, now);
  }
}

Result<void> Engine::set(const protocol::admin::SetRequest& request, policy::Instant now) {
  Tenant* tenant = nullptr;
  if (!request.tenant.empty()) {
    tenant = tenants_.find(request.tenant);
    if (tenant == nullptr) return not_one_of(tenants_, request.tenant);
  }
  Result<Settings> changed = change_settings(settings_, {request.settings.begin(), request.settings.end()});
  if (!changed) return changed.error();
  if (tenant != nullptr) orders_.set(*tenant, request, now);
  if (request.settings.empty()) return {};
  settings_ = *changed;
  set_log_level(settings_.log_level);
  apply(policy::ConfigChanged{settings_.policy}, now);
  host_.look(now);
  bypasses_.refuse_turns(now);
  sharing_.tell(now);
  return {};
}

}  // namespace nvshare::scheduler
