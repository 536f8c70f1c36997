#include "scheduler/trace.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/json_nesting.h"
#include "policy/overloaded.h"
#include "scheduler/settings.h"

template <typename T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& out, const std::optional<T>& value) { value ? out = *value : out = nullptr; }
  static void from_json(const json& in, std::optional<T>& value) {
    value = in.is_null() ? std::optional<T>() : std::optional<T>(in.get<T>());
  }
};

// Fields by name; must be in the events' own namespace to be found.
namespace nvshare::policy {

// What the policy's settings are is written by their rows (setting_rows.cc), in nanoseconds also where a name says milliseconds.
static std::string name_in_trace(std::string_view setting) {
  constexpr std::string_view kMilliseconds = "_ms";
  return std::string(setting.ends_with(kMilliseconds) ? setting.substr(0, setting.size() - kMilliseconds.size()) : setting);
}

// What else a configuration has, in each release.
static constexpr std::pair<const char*, int64_t Config::*> kNoSettings[] = {{"reserve_fixed", &Config::reserve_fixed},
                                                                            {"overhead_default", &Config::overhead_default},
                                                                            {"departed_grace", &Config::departed_grace},
                                                                            {"watched_grace", &Config::watched_grace}};

static nlohmann::json json_of(const scheduler::TraceValue& value) {
  return std::visit(Overloaded{[](std::monostate) { return nlohmann::json(); }, [](const auto& is) { return nlohmann::json(is); }}, value);
}

static scheduler::TraceValue value_of(const nlohmann::json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_null()) return {};
  if (json.is_string()) return json.get<std::string>();
  return json.get<int64_t>();
}

static void to_json(nlohmann::json& json, const Config& config) {
  json = nlohmann::json::object();
  for (const scheduler::SettingSpec& spec : scheduler::setting_specs()) {
    if (spec.traced) json[name_in_trace(spec.name)] = json_of(spec.traced->get(config));
  }
  for (const auto& [name, member] : kNoSettings) json[name] = config.*member;
}

// A setting that an earlier release did not have is as it was there: as by default.
static void from_json(const nlohmann::json& json, Config& config) {
  for (const scheduler::SettingSpec& spec : scheduler::setting_specs()) {
    if (!spec.traced) continue;
    const auto value = json.find(name_in_trace(spec.name));
    if (value == json.end() || spec.traced->set(config, value_of(*value))) continue;
    throw nlohmann::json::other_error::create(501, std::string(spec.name) + " cannot be " + value->dump(), &json);
  }
  for (const auto& [name, member] : kNoSettings) json.at(name).get_to(config.*member);
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Memory, allocated, resident, unswappable)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuAppeared, gpu, total)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ForeignMemory, gpu, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostMemory::Use, tenant, used)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(HostMemory, available, free, kept, share, uses, changes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientJoined, client, gpu, tenant, priority, memory, swappable, has_lock, wants_lock, gang, ends, proven,
                                   overhead, replaces, process, prefetches)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientOverhead, client, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientLeft, client, memory_freed, watched)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientMemoryFreed, client)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryHeld, client, gpu, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LockRequested, client)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LockReleased, client, grant, memory, early, idle, used, work)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LockPaused, client, grant, used, work)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LockResumed, client, grant)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Drained, client, grant, attempt)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EndsSoon, client, grant, attempt)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DrainFailed, client, grant)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryChanged, client, memory, budget, budget_sequence, wanted, request)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SwapProgressed, client, out, finished, failed, id, copied, elapsed, memory, unmoved, ahead,
                                                host_more)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryBelieved, client, memory)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ConfigChanged, config)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ComputeLimit, tenant, ceiling, reserved)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TenantPriority, tenant, priority)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TenantEnds, tenant, ends)
// "paused" and TenantPaused: the names that traces of earlier releases have.
static void to_json(nlohmann::json& json, const TenantSuspended& event) { json = {{"tenant", event.tenant}, {"paused", event.suspended}}; }
static void from_json(const nlohmann::json& json, TenantSuspended& event) {
  json.at("tenant").get_to(event.tenant);
  json.at("paused").get_to(event.suspended);
}
NLOHMANN_JSON_SERIALIZE_ENUM(TenantSharing,
                             {{TenantSharing::kNode, "node"}, {TenantSharing::kTogether, "together"}, {TenantSharing::kTurns, "turns"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TenantTurns, tenant, sharing, most)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientShares, client, group, measured)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientProgressed, client, question, work)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AccountKept, tenant, gpu, joined_at, debt, used, throttled_time)

NLOHMANN_JSON_SERIALIZE_ENUM(ClientState, {{ClientState::kIdle, "idle"},
                                           {ClientState::kWaiting, "waiting"},
                                           {ClientState::kLoading, "loading"},
                                           {ClientState::kRunning, "running"},
                                           {ClientState::kPaused, "paused"},
                                           {ClientState::kDropping, "dropping"},
                                           {ClientState::kUnresponsive, "unresponsive"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientGlimpse, client, gpu, tenant, state, in_turn, turns, memory, swapped_out_total, swapped_in_total,
                                   held)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SendLock, client, grant, budget, budget_sequence)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SendDrop, client, grant, together, attempt, tells_end)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SendKeep, client, grant)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SendEvict, client, eviction, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SendWait, client, request)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SendMemory, client, request, granted, budget, budget_sequence)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SendContention, client, waiters, memory_waiters, swap_cost, limited, idle_release,
                                                gang_runs, pause, held)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SendAskProgress, client, question, counts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SendCeiling, client, ceiling)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SendPrefetch, client, prefetch, budget)

static void to_json(nlohmann::json& json, const Tick&) { json = nlohmann::json::object(); }
static void from_json(const nlohmann::json&, Tick&) {}

}  // namespace nvshare::policy

namespace nvshare::scheduler {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TraceNames, client, program, pid, tenant, tenant_name, gpu)

namespace {

using Json = nlohmann::json;

// In the order of policy::Event.
constexpr const char* kEventNames[] = {
    "GpuAppeared", "ForeignMemory", "HostMemory",     "ClientJoined",   "ClientOverhead",   "ClientLeft",   "ClientMemoryFreed",
    "MemoryHeld",  "LockRequested", "LockReleased",   "LockPaused",     "LockResumed",      "Drained",      "EndsSoon",
    "DrainFailed", "MemoryChanged", "SwapProgressed", "MemoryBelieved", "ConfigChanged",    "ComputeLimit", "TenantPriority",
    "TenantEnds",  "TenantPaused",  "TenantTurns",    "ClientShares",   "ClientProgressed", "AccountKept",  "Tick"};
static_assert(std::size(kEventNames) == std::variant_size_v<policy::Event>);

// What traces of release 0.2 lack, as it was there.
const struct {
  const char* event;
  const char* member;
  Json value;
} kLackedBy02[] = {
    {"ClientJoined", "prefetches", false}, {"LockReleased", "work", 0}, {"LockPaused", "work", 0}, {"ClientShares", "measured", false}};

void complete(const std::string& event, Json& json) {
  for (const auto& lacked : kLackedBy02) {
    if (event == lacked.event) json.emplace(lacked.member, lacked.value);
  }
}

// In the order of policy::Action; none of notes, which are not recorded.
constexpr const char* kActionNames[] = {"SendLock",       "SendDrop",        "SendKeep",    "SendEvict",    "SendWait", "SendMemory",
                                        "SendContention", "SendAskProgress", "SendCeiling", "SendPrefetch", nullptr};
static_assert(std::size(kActionNames) == std::variant_size_v<policy::Action>);
static_assert(std::is_same_v<std::variant_alternative_t<std::size(kActionNames) - 1, policy::Action>, policy::Note>);

Json json_of(const policy::Action& action) {
  Json json =
      std::visit(policy::Overloaded{[](const policy::Note&) { return Json(); }, [](const auto& sent) { return Json(sent); }}, action);
  json["action"] = kActionNames[action.index()];
  return json;
}

template <size_t kIndex = 0>
policy::Action action_named(const std::string& name, const Json& json) {
  if constexpr (kIndex + 1 < std::variant_size_v<policy::Action>) {
    if (name != kActionNames[kIndex]) return action_named<kIndex + 1>(name, json);
    return policy::Action(std::in_place_index<kIndex>, json.get<std::variant_alternative_t<kIndex, policy::Action>>());
  }
  throw Json::other_error::create(501, "no such action: " + name, &json);
}

policy::Actions answers_of(const Json& event) {
  policy::Actions answers;
  const auto recorded = event.find("answers");
  if (recorded == event.end()) return answers;
  for (const Json& action : *recorded) answers.push_back(action_named(action.at("action").get<std::string>(), action));
  return answers;
}

template <size_t kIndex = 0>
std::optional<policy::Event> event_named(const std::string& name, const Json& json) {
  if constexpr (kIndex < std::variant_size_v<policy::Event>) {
    if (name != kEventNames[kIndex]) return event_named<kIndex + 1>(name, json);
    return policy::Event(std::in_place_index<kIndex>, json.get<std::variant_alternative_t<kIndex, policy::Event>>());
  }
  return std::nullopt;
}

std::optional<Wake> wake_of(const Json& event) {
  const auto recorded = event.find("wake");
  if (recorded == event.end()) return std::nullopt;
  return recorded->is_null() ? Wake() : Wake(recorded->get<policy::Instant>());
}

Json json_of(const TraceStart& start) {
  Json json = {{"release", start.release}};
  if (start.config) json["config"] = *start.config;
  if (start.has_answers) json["answers"] = true;
  if (start.has_wakes) json["wakes"] = true;
  return json;
}

Json json_of(const policy::Event& of, const policy::Actions& answers, const std::optional<Wake>& wake, policy::Instant now) {
  Json json = std::visit([](const auto& event) { return Json(event); }, of);
  json["now"] = now;
  json["event"] = kEventNames[of.index()];
  for (const policy::Action& action : answers) {
    if (!std::holds_alternative<policy::Note>(action)) json["answers"].push_back(json_of(action));
  }
  if (wake) json["wake"] = *wake ? Json(**wake) : Json();
  return json;
}

Json json_of(const TraceEvent& traced) { return json_of(traced.event, traced.answers, traced.wake, traced.now); }

Json json_of(const TraceNames& names) { return {{"names", names}}; }

Json json_of(const TraceSighting& sighting) {
  Json json = {{"now", sighting.now}, {"seen", sighting.seen}};
  if (!sighting.waiting_for.empty()) json["for"] = sighting.waiting_for;
  return json;
}

// Programs' names may be any bytes.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string encode_trace(const TraceLine& line) {
  return text_of(std::visit([](const auto& of) { return json_of(of); }, line));
}

std::vector<std::string> encode_answers(const policy::Actions& actions) {
  std::vector<std::string> answers;
  for (const policy::Action& action : actions) {
    if (!std::holds_alternative<policy::Note>(action)) answers.push_back(text_of(json_of(action)));
  }
  return answers;
}

Result<TraceLine> decode_trace(std::string_view line) {
  if (nests_too_deep(line)) return error_format("not a line of a trace: it nests more than %d deep", kJsonNestingMax);
  try {
    Json json = Json::parse(line);
    if (json.contains("event")) {
      const auto name = json.at("event").get<std::string>();
      complete(name, json);
      auto event = event_named(name, json);
      if (!event) return error_format("no such event: %.150s", json.at("event").dump().c_str());
      return TraceLine(TraceEvent{json.at("now").get<policy::Instant>(), *event, answers_of(json), wake_of(json)});
    }
    if (json.contains("names")) return TraceLine(json.at("names").get<TraceNames>());
    if (json.contains("seen"))
      return TraceLine(TraceSighting{json.at("now").get<policy::Instant>(), json.at("seen").get<policy::ClientGlimpse>(),
                                     json.value("for", std::string())});
    TraceStart start{json.value("release", std::string()), std::nullopt, json.value("answers", false), json.value("wakes", false)};
    if (start.release.empty() || json.contains("config")) start.config = json.at("config").get<policy::Config>();
    return TraceLine(start);
  } catch (const Json::parse_error&) {
    return error_format("not a line of a trace: it is no JSON");
  } catch (const Json::exception& problem) {
    // "[json.exception.out_of_range.403] key 'config' not found"
    const std::string_view what = problem.what();
    const size_t end = what.find("] ");
    return error_format("not a line of a trace: %.200s", what.substr(end == std::string_view::npos ? 0 : end + 2).data());
  }
}

// As a scheduler leaves it that is killed.
static bool ends_in_a_line(const std::string& file) {
  std::ifstream written(file, std::ios::binary);
  return written.seekg(-1, std::ios::end) && written.get() != '\n';
}

// In a folder that others can write, by which lines of ours would be added to any file that we can write.
static bool is_link_of_another_user(const std::string& file) {
  struct stat status {};
  return lstat(file.c_str(), &status) == 0 && S_ISLNK(status.st_mode) && status.st_uid != geteuid() && status.st_uid != 0;
}

Result<TraceWriter> TraceWriter::open(const std::string& file, const policy::Config& config) {
  if (is_link_of_another_user(file))
    return error_format("cannot write %.110s: it is a link of another user; name another file", file.c_str());
  // It names tenants and programs: for nobody else, where it is made anew.
  const FileDescriptor made(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!made) return error_format("cannot write %.110s: %s", file.c_str(), std::strerror(errno));
  std::ofstream stream("/proc/self/fd/" + std::to_string(made.get()), std::ios::app);  // that very file, whatever is at its place now
  if (!stream) return error_format("cannot write %.110s: %s", file.c_str(), std::strerror(errno));
  if (ends_in_a_line(file)) stream << "\n";
  stream << encode_trace(TraceStart{NVSHARE_VERSION, config, true, true}) << "\n";
  return TraceWriter(std::move(stream));
}

void TraceWriter::write(const TraceLine& line) { stream_ << encode_trace(line) << "\n"; }

void TraceWriter::write(const policy::Event& event, const policy::Actions& answers, const Wake& wake, policy::Instant now) {
  const bool changed = std::exchange(wake_, wake) != wake;
  stream_ << text_of(json_of(event, answers, changed ? std::optional<Wake>(wake) : std::nullopt, now)) << "\n";
}

}  // namespace nvshare::scheduler
