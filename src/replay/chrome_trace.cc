#include "replay/chrome_trace.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "scheduler/trace_possible.h"

namespace nvshare::replay {
namespace {

using policy::ClientState;
using policy::ClientView;
using policy::GpuView;
using policy::Instant;

std::string quoted(const std::string& text) { return nlohmann::json(printable(text)).dump(); }

// Microseconds, to the nanosecond.
std::string microseconds(policy::Duration ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000), static_cast<long long>(ns % 1000));
  return text;
}

bool runs(const ClientView& client) {
  return client.state == ClientState::kRunning || client.state == ClientState::kDropping || client.state == ClientState::kUnresponsive;
}

}  // namespace

std::string ChromeTrace::name_of(policy::ClientId client) const {
  const std::string number = "client " + std::to_string(client);
  const auto named = names_.find(client);
  return named == names_.end() ? number : number + ": " + named->second.program + " (pid " + std::to_string(named->second.pid) + ")";
}

std::string ChromeTrace::tenant_name(policy::TenantId tenant) const {
  const std::string number = "tenant " + std::to_string(tenant);
  const auto named = tenant_names_.find(tenant);
  return named == tenant_names_.end() ? number : number + ": " + named->second;
}

ChromeTrace::Track& ChromeTrace::track(policy::GpuId gpu, Kind kind, uint64_t who, const std::string& name, uint64_t order) {
  const std::string key = std::to_string(gpu) + "/" + std::to_string(static_cast<uint32_t>(kind)) + "/" + std::to_string(who);
  const auto [at, made] = tracks_.try_emplace(key);
  Track& track = at->second;
  if (!made) return track;
  track.id = next_track_++;
  const std::string ids = R"(,"pid":)" + std::to_string(gpu + 1) + R"(,"tid":)" + std::to_string(track.id);
  events_ += R"({"ph":"M","name":"thread_name")" + ids + R"(,"args":{"name":)" + quoted(name) + "}},\n";
  events_ += R"({"ph":"M","name":"thread_sort_index")" + ids + R"(,"args":{"sort_index":)" + std::to_string(order) + "}},\n";
  return track;
}

void ChromeTrace::slice(policy::GpuId gpu, uint32_t track, const std::string& name, const std::string& arguments, Instant begin,
                        Instant end) {
  events_ += R"({"ph":"X","name":)" + quoted(name) + R"(,"pid":)" + std::to_string(gpu + 1) + R"(,"tid":)" + std::to_string(track) +
             R"(,"ts":)" + microseconds(begin - first_) + R"(,"dur":)" + microseconds(end - begin);
  if (!arguments.empty()) events_ += R"(,"args":{)" + arguments + "}";
  events_ += "},\n";
}

// The track goes on with `slice`; what was there ends, unless it is the same.
void ChromeTrace::set(policy::GpuId gpu, Track& track, const std::string& name, const std::string& arguments, Instant now) {
  if (track.slice == name && track.arguments == arguments) return;
  if (!track.slice.empty() && now > track.since) slice(gpu, track.id, track.slice, track.arguments, track.since, now);
  track.slice = name;
  track.arguments = arguments;
  track.since = now;
}

Result<void> ChromeTrace::add(std::string_view line) {
  auto decoded = scheduler::decode_trace(line);
  if (!decoded) return decoded.error();
  if (auto possible = scheduler::check_possible(*decoded); !possible) return possible.error();
  return add(*decoded);
}

Result<void> ChromeTrace::add(const scheduler::TraceLine& line) {
  if (const auto* start = std::get_if<scheduler::TraceStart>(&line)) {
    begin_again(*start);
    return {};
  }
  if (!state_ && !watched_) return error_format("an event comes before the settings: this is not the beginning of a recording");
  if (const auto* names = std::get_if<scheduler::TraceNames>(&line)) {
    names_[names->client] = *names;
    tenant_names_[names->tenant] = names->tenant_name;
  } else if (const auto* sighting = std::get_if<scheduler::TraceSighting>(&line)) {
    if (!watched_) return error_format("a sighting is in a recording of events");
    add_sighting(*sighting);
  } else {
    add_event(std::get<scheduler::TraceEvent>(line));
  }
  return {};
}

// A scheduler began, perhaps after another one that wrote to the same file; or it remembers less than what was read of it before.
void ChromeTrace::begin_again(const scheduler::TraceStart& start) {
  close_all();
  clients_.clear();
  counters_.clear();
  seen_.clear();
  release_ = start.release;
  watched_ = !start.config;
  state_ = start.config ? policy::make_state(*start.config) : nullptr;
}

std::vector<GpuView> ChromeTrace::views(Instant now) const {
  if (state_) return policy::view(*state_, now);
  std::map<policy::GpuId, GpuView> gpus;
  for (const auto& [gpu, known] : gpus_) gpus[gpu].gpu = gpu;
  for (const auto& [id, client] : seen_) {
    gpus[client.gpu].gpu = client.gpu;
    gpus[client.gpu].clients.push_back(client);
  }
  std::vector<GpuView> all;
  for (auto& [id, gpu] : gpus) all.push_back(std::move(gpu));
  return all;
}

void ChromeTrace::add_sighting(const scheduler::TraceSighting& sighting) {
  const policy::ClientGlimpse& seen = sighting.seen;
  const auto [at, is_first] = seen_.try_emplace(seen.client);
  ClientView& client = at->second;
  client.client = seen.client;
  client.gpu = seen.gpu;
  client.tenant = seen.tenant;
  client.state = seen.state;
  client.in_turn = seen.in_turn;
  client.turns = seen.turns;
  client.memory = seen.memory;
  client.held = seen.held;
  client.swapped_out_total = seen.swapped_out_total;
  client.swapped_in_total = seen.swapped_in_total;
  client.waiting_for = sighting.waiting_for;
  if (first_ < 0) first_ = sighting.now;
  last_ = std::max(last_, sighting.now);
  if (is_first) {  // what it did before is not in this recording
    ClientPast& past = clients_[seen.client];
    past.turns = seen.turns - (seen.in_turn && seen.turns > 0 ? 1 : 0);
    past.out = seen.swapped_out_total;
    past.in = seen.swapped_in_total;
  }
  look(sighting.now);
}

void ChromeTrace::add_event(const scheduler::TraceEvent& traced) {
  const Instant now = traced.now;
  if (first_ < 0) first_ = now;
  // What the client's clock said until now must be seen before it is gone.
  const auto* left = std::get_if<policy::ClientLeft>(&traced.event);
  if (left != nullptr) look(now);
  if (state_) policy::step(*state_, traced.event, now);
  if (left != nullptr) seen_.erase(left->client);
  last_ = std::max(last_, now);
  look(now);
  if (const auto* swapped = std::get_if<policy::SwapProgressed>(&traced.event)) note_copies(*swapped, now);
  if (left != nullptr) take_leave(left->client, now);
}

void ChromeTrace::take_leave(policy::ClientId client, Instant now) {
  const auto past = clients_.find(client);
  if (past == clients_.end()) return;
  close_copy(client, true);
  close_copy(client, false);
  for (const Kind kind : {Kind::kState, Kind::kTurns}) set(past->second.gpu, track(past->second.gpu, kind, client, "", 0), "", "", now);
  clients_.erase(past);
}

// Messages of one movement say what it has copied in all, and for how long it has been copying.
void ChromeTrace::note_copies(const policy::SwapProgressed& event, Instant now) {
  const auto at = clients_.find(event.client);
  if (at == clients_.end()) return;
  ClientPast& past = at->second;
  policy::Bytes out = past.out;
  policy::Bytes in = past.in;
  for (const GpuView& gpu : views(now)) {
    for (const ClientView& client : gpu.clients) {
      if (client.client == event.client) out = client.swapped_out_total, in = client.swapped_in_total;
    }
  }
  Copy& copy = event.out ? past.copy_out : past.copy_in;
  const policy::Bytes bytes = event.out ? out - past.out : in - past.in;
  past.out = out;
  past.in = in;
  if (copy.bytes > 0 && copy.movement != event.id) close_copy(event.client, event.out);
  if (bytes > 0) {
    if (copy.bytes == 0) {
      const Instant before = event.out ? past.copies_end_out : past.copies_end_in;
      copy.movement = event.id;
      copy.begin =
          std::clamp<Instant>(now - std::clamp<policy::Duration>(event.elapsed, 0, now), std::min(std::max(before, first_), now), now);
    }
    copy.bytes += bytes;
    copy.end = now;
  }
  if (event.finished) close_copy(event.client, event.out);
}

void ChromeTrace::close_copy(policy::ClientId client, bool out) {
  ClientPast& past = clients_.at(client);
  Copy& copy = out ? past.copy_out : past.copy_in;
  if (copy.bytes > 0) {
    const Track& shown = track(past.gpu, out ? Kind::kOut : Kind::kIn, client, name_of(client) + (out ? ": copies out" : ": copies in"),
                               past.tenant * 100000 + client * 10 + (out ? 3 : 4));
    slice(past.gpu, shown.id, out ? "swap out" : "swap in", R"("bytes":)" + std::to_string(copy.bytes), copy.begin, copy.end);
    (out ? past.copies_end_out : past.copies_end_in) = copy.end;
  }
  copy = {};
}

void ChromeTrace::look(Instant now) {
  for (const GpuView& gpu : views(now)) look_at(gpu, now);
}

void ChromeTrace::look_at(const GpuView& gpu, Instant now) {
  // Named anew once a client has said what the GPU is called.
  const std::string known_as = gpu.clients.empty() || names_.count(gpu.clients[0].client) == 0 ? "" : names_[gpu.clients[0].client].gpu;
  const auto [named, is_new] = gpus_.try_emplace(gpu.gpu);
  if (is_new || (named->second.empty() && !known_as.empty())) {
    named->second = known_as;
    const std::string name = "GPU " + std::to_string(gpu.gpu) + (known_as.empty() ? "" : ": " + known_as);
    events_ += R"({"ph":"M","name":"process_name","pid":)" + std::to_string(gpu.gpu + 1) + R"(,"args":{"name":)" + quoted(name) + "}},\n";
  }
  std::string holders;
  Counters now_counted{0, 0};
  std::map<policy::TenantId, const char*> tenants;
  for (const ClientView& client : gpu.clients) {
    look_at(client, now);
    now_counted.resident += client.memory.resident;
    now_counted.swapped += client.memory.allocated - client.memory.resident;
    const char*& tenant = tenants.try_emplace(client.tenant, "").first->second;
    if (runs(client)) {
      holders += (holders.empty() ? "" : " + ") + tenant_name(client.tenant) + " (" + name_of(client.client) + ")";
      tenant = "runs";
    } else if (*tenant == 0 && (client.state == ClientState::kWaiting || client.state == ClientState::kLoading)) {
      tenant = "waits";
    } else if (*tenant == 0 && client.held) {
      tenant = "paused";
    }
  }
  set(gpu.gpu, track(gpu.gpu, Kind::kGpu, 0, "who has the GPU", 0), holders, "", now);
  for (auto& [key, shown] : tracks_) {  // of tenants that have no client here any more
    const std::string prefix = std::to_string(gpu.gpu) + "/" + std::to_string(static_cast<uint32_t>(Kind::kTenant)) + "/";
    if (key.rfind(prefix, 0) == 0 && tenants.count(std::stoull(key.substr(prefix.size()))) == 0) set(gpu.gpu, shown, "", "", now);
  }
  for (const auto& [tenant, does] : tenants)
    set(gpu.gpu, track(gpu.gpu, Kind::kTenant, tenant, tenant_name(tenant), tenant * 100000), does, "", now);
  Counters& before = counters_[gpu.gpu];
  if (before.resident == now_counted.resident && before.swapped == now_counted.swapped) return;
  before = now_counted;
  events_ += R"({"ph":"C","name":"memory of clients","pid":)" + std::to_string(gpu.gpu + 1) + R"(,"ts":)" + microseconds(now - first_) +
             R"(,"args":{"resident":)" + std::to_string(before.resident) + R"(,"swapped":)" + std::to_string(before.swapped) + "}},\n";
}

void ChromeTrace::look_at(const ClientView& client, Instant now) {
  ClientPast& past = clients_[client.client];
  if (!past.counted) {
    past.counted = true;
    ++clients_seen_;
    past.gpu = client.gpu;
    past.tenant = client.tenant;
    past.copies_end_out = past.copies_end_in = now;
  }
  const uint64_t order = client.tenant * 100000 + client.client * 10;
  Track& state = track(client.gpu, Kind::kState, client.client, name_of(client.client), order + 1);
  const std::string name = client.held ? "held" : client.state == ClientState::kIdle ? "" : policy::name_of(client.state);
  // A wait keeps the reason that it began with.
  std::string arguments = state.slice == name ? state.arguments : std::string();
  if ((client.state == ClientState::kWaiting || client.held) && arguments.empty() && !client.waiting_for.empty())
    arguments = R"("for":)" + quoted(client.waiting_for);
  if (state.slice == name) {
    state.arguments = arguments;
  } else {
    set(client.gpu, state, name, arguments, now);
  }
  Track& turns = track(client.gpu, Kind::kTurns, client.client, name_of(client.client) + ": turns", order + 2);
  turns_seen_ += client.turns - past.turns;
  past.turns = client.turns;
  set(client.gpu, turns, client.in_turn && client.turns > 0 ? "turn " + std::to_string(client.turns) : "", "", now);
}

void ChromeTrace::close_all() {
  for (const auto& [client, past] : clients_) {
    close_copy(client, true);
    close_copy(client, false);
  }
  for (auto& [key, open] : tracks_) set(static_cast<policy::GpuId>(std::stoul(key)), open, "", "", last_);
}

ChromeTrace::Summary ChromeTrace::summary() const { return {gpus_.size(), clients_seen_, turns_seen_, first_ < 0 ? 0 : last_ - first_}; }

std::string ChromeTrace::finish() {
  close_all();
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events_;
  if (out.ends_with(",\n")) out.erase(out.size() - 2);
  return out + "\n]}\n";
}

}  // namespace nvshare::replay
