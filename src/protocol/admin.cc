#include "protocol/admin.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_nesting.h"
#include "base/parse.h"
#include "protocol/report_fields.h"

namespace nvshare::protocol::admin {

using Json = nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(TurnReport, waits, waited_ns, gpu, holder, state, held_ns, others, left_ns, again_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PodNotice, number, uid, reason, text)

namespace {

constexpr char kRequests[] = "status, tenant, set, pods, job, trace, turn, shutdown";

std::string line_of(const Json& json) {
  // A program's name may be any bytes; what is not UTF-8 is shown as U+FFFD instead of failing the whole report.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// An amount of memory given as a number or as text.
Result<int64_t> bytes_field(const Json& json, const char* field) {
  constexpr auto kMost = static_cast<uint64_t>(kMemoryMost);
  auto found = json.find(field);
  if (found == json.end()) return int64_t{0};
  if (found->is_number_unsigned() && found->get<uint64_t>() <= kMost) return found->get<int64_t>();
  if (found->is_string()) {
    Result<uint64_t> bytes = parse_bytes(found->get_ref<const std::string&>());
    if (bytes && *bytes <= kMost) return static_cast<int64_t>(*bytes);
    if (!bytes) return error_format("%s: %.200s", field, bytes.error().text);
  }
  return error_format("%s must be an amount of memory up to 1024Ti: bytes, or text such as \"8Gi\"", field);
}

// The same, or "none".
Result<int64_t> limit_field(const Json& json, const char* field) {
  auto found = json.find(field);
  if (found != json.end() && found->is_string() && found->get_ref<const std::string&>() == "none") return int64_t{0};
  return bytes_field(json, field);
}

// A percentage of GPU time given as a number or as text; nothing when it is not there.
Result<std::optional<int32_t>> core_field(const Json& json, const char* field, int least = 1) {
  auto found = json.find(field);
  if (found == json.end()) return std::optional<int32_t>();
  Result<int64_t> percent = parse_integer(found->is_string() ? found->get<std::string>() : found->dump(), least, 100);
  if (!percent)
    return error_format("%s must be a percentage of GPU time: an integer from %s", field,
                        least == 0 ? "0 (none) to 100" : "1 to 100 (none)");
  return std::optional(static_cast<int32_t>(*percent));
}

// The same of a priority.
Result<std::optional<int32_t>> priority_field(const Json& json) {
  auto found = json.find("priority");
  if (found == json.end()) return std::optional<int32_t>();
  Result<int64_t> priority = parse_integer(found->is_string() ? found->get<std::string>() : found->dump(), kPriorityMin, kPriorityMax);
  if (!priority) return error_format("priority must be an integer from %d to %d", kPriorityMin, kPriorityMax);
  return std::optional(static_cast<int32_t>(*priority));
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

Result<Request> decode_tenant_request(const Json& json) {
  TenantRequest request;
  auto pid = json.find("pid");
  if (pid == json.end() || !pid->is_number_integer() || pid->get<int64_t>() < 1 || pid->get<int64_t>() > INT32_MAX) {
    return error_format("pid must be a process number from 1 to %d", INT32_MAX);
  }
  request.pid = pid->get<int32_t>();
  if (auto name = json.find("name"); name != json.end()) {
    if (!name->is_string()) return error_format("name must be text");
    request.name = name->get<std::string>();
  }
  Result<int64_t> limit = bytes_field(json, "gpu_memory_limit");
  if (!limit) return limit.error();
  request.gpu_memory_limit = *limit;
  Result<int64_t> reserved = bytes_field(json, "gpu_memory_reserved");
  if (!reserved) return reserved.error();
  request.gpu_memory_reserved = *reserved;
  auto core_limit = core_field(json, "gpu_core_limit");
  if (!core_limit) return core_limit.error();
  request.gpu_core_limit = core_limit->value_or(100);
  auto core_ceiling = core_field(json, "gpu_core_ceiling");
  if (!core_ceiling) return core_ceiling.error();
  request.gpu_core_ceiling = core_ceiling->value_or(100);
  auto priority = priority_field(json);
  if (!priority) return priority.error();
  request.priority = priority->value_or(0);
  if (auto gang = json.find("gang_turns"); gang != json.end()) {
    if (!gang->is_boolean()) return error_format("gang_turns must be true or false");
    request.gang_turns = gang->get<bool>();
  }
  if (auto gpus = json.find("gpus"); gpus != json.end()) {
    if (!gpus->is_array() || !std::all_of(gpus->begin(), gpus->end(), [](const Json& gpu) { return gpu.is_string(); }))
      return error_format("gpus must be a list of UUIDs");
    request.gpus = gpus->get<std::vector<std::string>>();
  }
  return Request(request);
}

Result<bool> flag_field(const Json& json, const char* field) {
  auto found = json.find(field);
  if (found == json.end()) return false;
  if (!found->is_boolean()) return error_format("%s must be true or false", field);
  return found->get<bool>();
}

Result<Request> decode_set_request(const Json& json) {
  SetRequest request;
  if (auto settings = json.find("settings"); settings != json.end()) {
    if (!settings->is_object()) return error_format("settings must be an object of names and values");
    for (const auto& [name, value] : settings->items()) request.settings[name] = text_of(value);
  }
  if (auto tenant = json.find("tenant"); tenant != json.end()) request.tenant = text_of(*tenant);
  Result<int64_t> limit = limit_field(json, "gpu_memory_limit");
  if (!limit) return limit.error();
  if (json.contains("gpu_memory_limit")) request.gpu_memory_limit = *limit;
  auto core_limit = core_field(json, "gpu_core_limit");
  if (!core_limit) return core_limit.error();
  request.gpu_core_limit = *core_limit;
  auto core_ceiling = core_field(json, "gpu_core_ceiling");
  if (!core_ceiling) return core_ceiling.error();
  request.gpu_core_ceiling = *core_ceiling;
  auto priority = priority_field(json);
  if (!priority) return priority.error();
  request.priority = *priority;
  if (auto paused = json.find("paused"); paused != json.end()) {
    if (!paused->is_boolean()) return error_format("paused must be true or false");
    request.paused = paused->get<bool>();
  }
  auto release = flag_field(json, "release");
  if (!release) return release.error();
  request.release = *release;
  if (auto sharing = json.find("sharing"); sharing != json.end()) {
    request.sharing = text_of(*sharing);
    if (!is_sharing_word(*request.sharing)) return error_format("sharing must be node, together, turns or auto");
  }
  const bool any_limit = request.gpu_memory_limit || request.gpu_core_limit || request.gpu_core_ceiling || request.priority ||
                         request.paused || request.release || request.sharing;
  if (request.tenant.empty() && any_limit) {
    return error_format("%s needs a tenant", request.gpu_memory_limit   ? "gpu_memory_limit"
                                             : request.gpu_core_limit   ? "gpu_core_limit"
                                             : request.gpu_core_ceiling ? "gpu_core_ceiling"
                                             : request.priority         ? "priority"
                                             : request.paused           ? "paused"
                                             : request.sharing          ? "sharing"
                                                                        : "release");
  }
  if (!request.tenant.empty() && !any_limit)
    return error_format("tenant needs a gpu_memory_limit, a gpu_core_limit, a gpu_core_ceiling, a priority, sharing, paused or release");
  if (request.tenant.empty() && request.settings.empty()) return error_format("set needs settings, or a tenant and its limits");
  return Request(request);
}

// An integer that is given as a number; 0 when it is not there.
Result<int64_t> integer_field(const Json& json, const char* field, int64_t minimum, int64_t maximum) {
  auto found = json.find(field);
  if (found == json.end()) return int64_t{0};
  if (found->is_number_integer()) {
    if (const auto value = parse_integer(found->dump(), minimum, maximum)) return *value;
  }
  return error_format("%s must be a number from %lld to %lld", field, static_cast<long long>(minimum), static_cast<long long>(maximum));
}

Result<PodRequest> decode_pod(const Json& json) {
  PodRequest pod;
  auto uid = json.is_object() ? json.find("uid") : json.end();
  if (!json.is_object() || uid == json.end() || !uid->is_string() || !is_pod_uid(uid->get_ref<const std::string&>())) {
    return error_format("each of pods must have a uid, in hexadecimal digits and '-'");
  }
  pod.uid = uid->get<std::string>();
  pod.name = pod.uid;
  if (auto name = json.find("name"); name != json.end()) {
    if (!name->is_string()) return error_format("a pod's name must be text");
    pod.name = name->get<std::string>().substr(0, kPodNameBytesMax);
  }
  for (const auto& [word, flag] :
       {std::pair("gone", &pod.gone), std::pair("ends", &pod.ends), std::pair("only_lowers", &pod.only_lowers)}) {
    const auto said = json.find(word);
    if (said == json.end()) continue;
    if (!said->is_boolean()) return error_format("a pod's %s must be true or false", word);
    *flag = said->get<bool>();
  }
  Result<int64_t> memory = limit_field(json, "gpu_memory_limit");
  if (!memory) return memory.error();
  pod.gpu_memory_limit = *memory;
  if (auto on = json.find("gpu_memory_on"); on != json.end()) {
    if (!on->is_object() || on->size() > kGpusOfPodMax) {
      return error_format("a pod's gpu_memory_on must be an object of up to %zu GPUs and amounts of memory", kGpusOfPodMax);
    }
    for (const auto& [gpu, amount] : on->items()) {
      Result<int64_t> there = limit_field(Json{{"gpu_memory_on", amount}}, "gpu_memory_on");
      if (!there) return error_format("%.60s: %.200s", gpu.c_str(), there.error().text);
      pod.gpu_memory_on[gpu] = *there;
    }
  }
  auto core = core_field(json, "gpu_core_limit");
  if (!core) return core.error();
  pod.gpu_core_limit = core->value_or(100);
  auto core_reserved = core_field(json, "gpu_core_reserved", 0);
  if (!core_reserved) return core_reserved.error();
  pod.gpu_core_reserved = std::min(core_reserved->value_or(0), pod.gpu_core_limit);
  auto priority = priority_field(json);
  if (!priority) return priority.error();
  pod.priority = priority->value_or(0);
  if (auto sharing = json.find("sharing"); sharing != json.end()) {
    pod.sharing = text_of(*sharing);
    if (!is_sharing_word(pod.sharing)) return error_format("a pod's sharing must be node, together, turns or auto");
  }
  auto turn_seconds = integer_field(json, "turn_seconds", 0, kTurnSecondsMax);
  if (!turn_seconds) return turn_seconds.error();
  pod.turn_seconds = static_cast<int32_t>(*turn_seconds);
  if (auto member_of = json.find("member_of"); member_of != json.end()) {
    if (!member_of->is_string() || !is_pod_uid(member_of->get_ref<const std::string&>()) || *member_of == pod.uid) {
      return error_format("a pod's member_of must be another pod's uid, in hexadecimal digits and '-'");
    }
    pod.member_of = member_of->get<std::string>();
  }
  return pod;
}

// Of a job, for people.
Result<std::string> short_text_field(const Json& json, const char* field) {
  auto found = json.find(field);
  if (found == json.end()) return std::string();
  if (!found->is_string()) return error_format("%s must be text", field);
  return found->get<std::string>().substr(0, kJobTextBytesMax);
}

Result<Request> decode_job_request(const Json& json) {
  JobRequest request;
  auto job = integer_field(json, "job", 1, UINT32_MAX);
  if (!job) return job.error();
  if (*job == 0) return error_format("job is missing: the number of a Slurm job");
  request.job = static_cast<uint32_t>(*job);
  auto pid = integer_field(json, "pid", 1, INT32_MAX);
  if (!pid) return pid.error();
  request.pid = static_cast<int32_t>(*pid);
  auto user = short_text_field(json, "user");
  if (!user) return user.error();
  request.user = *user;
  auto partition = short_text_field(json, "partition");
  if (!partition) return partition.error();
  request.partition = *partition;
  auto memory = limit_field(json, "gpu_memory_limit");
  if (!memory) return memory.error();
  request.gpu_memory_limit = *memory;
  auto percent = integer_field(json, "gpu_memory_percent", 0, 100);
  if (!percent) return percent.error();
  request.gpu_memory_percent = static_cast<int32_t>(*percent);
  auto core = core_field(json, "gpu_core_limit");
  if (!core) return core.error();
  request.gpu_core_limit = core->value_or(100);
  auto core_ceiling = core_field(json, "gpu_core_ceiling");
  if (!core_ceiling) return core_ceiling.error();
  request.gpu_core_ceiling = core_ceiling->value_or(100);
  auto priority = priority_field(json);
  if (!priority) return priority.error();
  request.priority = priority->value_or(0);
  auto ends = flag_field(json, "ends");
  if (!ends) return ends.error();
  request.ends = *ends;
  auto gone = flag_field(json, "gone");
  if (!gone) return gone.error();
  request.gone = *gone;
  if (json.contains("suspended")) {
    auto suspended = flag_field(json, "suspended");
    if (!suspended) return suspended.error();
    request.suspended = *suspended;
  }
  return Request(request);
}

Result<Request> decode_status_request(const Json& json) {
  auto changes = integer_field(json, "changes", 0, INT64_MAX);
  if (!changes) return changes.error();
  auto within = integer_field(json, "within_ms", 0, kStatusWaitMsMax);
  if (!within) return within.error();
  auto early = integer_field(json, "early_ms", 0, kStatusWaitMsMax);
  if (!early) return early.error();
  auto brief = flag_field(json, "brief");
  if (!brief) return brief.error();
  return Request(StatusRequest{static_cast<uint64_t>(*changes), *within, *early, *brief});
}

Result<Request> decode_trace_request(const Json& json) {
  auto after = integer_field(json, "after", 0, INT64_MAX);
  if (!after) return after.error();
  auto last = integer_field(json, "last_ns", 0, INT64_MAX);
  if (!last) return last.error();
  return Request(TraceRequest{static_cast<uint64_t>(*after), *last});
}

Result<Request> decode_turn_request(const Json& json) {
  auto tenant = integer_field(json, "tenant", 0, INT64_MAX);
  if (!tenant) return tenant.error();
  return Request(TurnRequest{static_cast<uint64_t>(*tenant)});
}

Result<Request> decode_pods_request(const Json& json) {
  PodsRequest request;
  auto pods = json.find("pods");
  if (pods == json.end() || !pods->is_array()) return error_format("pods must be a list");
  if (pods->size() > kPodsMax) return error_format("pods has %zu entries; accepted: up to %zu", pods->size(), kPodsMax);
  for (const Json& one : *pods) {
    Result<PodRequest> pod = decode_pod(one);
    if (!pod) return pod.error();
    request.pods.push_back(std::move(*pod));
  }
  if (auto complete = json.find("complete"); complete != json.end()) {
    if (!complete->is_boolean()) return error_format("complete must be true or false");
    request.complete = complete->get<bool>();
  }
  if (auto list = json.find("list"); list != json.end()) {
    if (*list != "first" && *list != "last") return error_format("list must be first or last");
    request.list = *list == "first" ? PodsRequest::List::kFirst : PodsRequest::List::kLast;
  }
  if (auto after = json.find("notices_after"); after != json.end()) {
    if (!after->is_number_unsigned()) return error_format("notices_after must be the number of a notice, or 0");
    request.notices_after = after->get<uint64_t>();
  }
  return Request(request);
}

Error refused_because(const std::string& error) {
  return error_format("%.250s", error.empty() ? "the scheduler refused without a reason" : error.c_str());
}

// The reply's object, or the error that it carries. None has a number with a fraction or beyond 64 bits: reading one as an integer has no
// defined result.
Result<Json> decode_reply(std::string_view line) {
  std::string key, wrong;
  const auto look = [&](int, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::key) key = value.get_ref<const std::string&>();
    if (event == Json::parse_event_t::value && value.is_number_float()) wrong = key;
    return true;
  };
  Json json = nests_too_deep(line) ? Json() : Json::parse(line, look, false);
  if (!json.is_object()) return error_format("the scheduler's answer is not a JSON object");
  if (!wrong.empty()) return error_format("the scheduler's answer has '%.60s', which is no integer of 64 bits", wrong.c_str());
  auto ok = json.find("ok");
  if (ok != json.end() && ok->is_boolean() && ok->get<bool>()) return json;
  auto error = json.find("error");
  return refused_because(error != json.end() && error->is_string() ? error->get<std::string>() : std::string());
}

struct StatusReply {
  bool ok = false;
  std::string error;
  StatusReport report;
};
void find_field(StatusReply& reply, JsonFields& fields) {
  fields.field("ok", reply.ok);
  fields.field("error", reply.error);
  find_field(reply.report, fields);
}

struct Encoder {
  Json operator()(const StatusRequest& r) const {
    Json json{{"request", "status"}};
    if (r.within_ms != 0) json.update({{"changes", r.changes}, {"within_ms", r.within_ms}, {"early_ms", r.early_ms}});
    if (r.brief) json["brief"] = true;
    return json;
  }
  Json operator()(const ShutdownRequest&) const { return {{"request", "shutdown"}}; }
  Json operator()(const TraceRequest& r) const { return {{"request", "trace"}, {"after", r.after}, {"last_ns", r.last_ns}}; }
  Json operator()(const TurnRequest& r) const { return {{"request", "turn"}, {"tenant", r.tenant}}; }
  Json operator()(const TenantRequest& r) const {
    return {{"request", "tenant"},
            {"pid", r.pid},
            {"name", r.name},
            {"gpu_memory_limit", r.gpu_memory_limit},
            {"gang_turns", r.gang_turns},
            {"gpu_core_limit", r.gpu_core_limit},
            {"priority", r.priority},
            {"gpu_memory_reserved", r.gpu_memory_reserved},
            {"gpu_core_ceiling", r.gpu_core_ceiling},
            {"gpus", r.gpus}};
  }
  Json operator()(const SetRequest& r) const {
    Json json = {{"request", "set"}};
    if (!r.settings.empty()) json["settings"] = r.settings;
    if (!r.tenant.empty()) {
      json["tenant"] = r.tenant;
      if (r.gpu_memory_limit) json["gpu_memory_limit"] = *r.gpu_memory_limit;
      if (r.gpu_core_limit) json["gpu_core_limit"] = *r.gpu_core_limit;
      if (r.gpu_core_ceiling) json["gpu_core_ceiling"] = *r.gpu_core_ceiling;
      if (r.priority) json["priority"] = *r.priority;
      if (r.paused) json["paused"] = *r.paused;
      if (r.release) json["release"] = true;
      if (r.sharing) json["sharing"] = *r.sharing;
    }
    return json;
  }
  Json operator()(const JobRequest& r) const {
    Json json = {{"request", "job"}, {"job", r.job}};
    if (r.ends) json["ends"] = true;
    if (r.gone) json["gone"] = true;
    if (r.suspended) json["suspended"] = *r.suspended;
    if (r.pid == 0) return json;
    json["pid"] = r.pid;
    json["user"] = r.user;
    json["partition"] = r.partition;
    json["gpu_memory_limit"] = r.gpu_memory_limit;
    json["gpu_memory_percent"] = r.gpu_memory_percent;
    json["gpu_core_limit"] = r.gpu_core_limit;
    json["gpu_core_ceiling"] = r.gpu_core_ceiling;
    json["priority"] = r.priority;
    return json;
  }
  Json operator()(const PodsRequest& r) const {
    Json pods = Json::array();
    for (const PodRequest& pod : r.pods) {
      if (pod.gone) {
        pods.push_back({{"uid", pod.uid}, {"gone", true}});
        continue;
      }
      Json& one = pods.emplace_back(Json{{"uid", pod.uid},
                                         {"name", pod.name.substr(0, kPodNameBytesMax)},
                                         {"gpu_memory_limit", pod.gpu_memory_limit},
                                         {"gpu_core_limit", pod.gpu_core_limit},
                                         {"gpu_core_reserved", pod.gpu_core_reserved},
                                         {"priority", pod.priority},
                                         {"ends", pod.ends}});
      if (!pod.gpu_memory_on.empty()) one["gpu_memory_on"] = pod.gpu_memory_on;
      if (pod.only_lowers) one["only_lowers"] = true;
      if (pod.sharing != "node") one["sharing"] = pod.sharing;
      if (pod.turn_seconds > 0) one["turn_seconds"] = pod.turn_seconds;
      if (!pod.member_of.empty()) one["member_of"] = pod.member_of;
    }
    Json json = {{"request", "pods"}, {"pods", pods}, {"complete", r.complete}};
    if (r.list != PodsRequest::List::kNone) json["list"] = r.list == PodsRequest::List::kFirst ? "first" : "last";
    if (r.notices_after) json["notices_after"] = *r.notices_after;
    return json;
  }
};

}  // namespace

bool is_sharing_word(std::string_view text) {
  return std::find(std::begin(kSharingWords), std::end(kSharingWords), text) != std::end(kSharingWords);
}

bool is_pod_uid(std::string_view text) {
  constexpr size_t kBytesMax = 64;
  return !text.empty() && text.size() <= kBytesMax && text.find_first_not_of("0123456789abcdef-") == std::string_view::npos;
}

std::string encode(const Request& request) { return line_of(std::visit(Encoder{}, request)); }

std::string encode_ok() { return line_of({{"ok", true}}); }

std::string encode_notices(const std::vector<PodNotice>& notices) { return line_of({{"ok", true}, {"notices", notices}}); }

std::string encode_tenant(uint64_t tenant) { return line_of({{"ok", true}, {"tenant", tenant}}); }

std::string encode_trace_part(const TracePart& part) {
  return line_of({{"ok", true}, {"lines", part.lines}, {"next", part.next}, {"more", part.more}});
}

std::string encode_turn(const TurnReport& turn) { return line_of({{"ok", true}, {"turn", turn}}); }

std::string encode_error(std::string_view text) { return line_of({{"ok", false}, {"error", text}}); }

Result<Request> decode_request(std::string_view line) {
  if (line.size() > kRequestBytesMax) return error_format("request of %zu bytes; accepted: up to %zu", line.size(), kRequestBytesMax);
  if (nests_too_deep(line)) return error_format("the request nests deeper than %d", kJsonNestingMax);
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return error_format("a request is one JSON object on one line");
  auto kind = json.find("request");
  if (kind == json.end() || !kind->is_string()) return error_format("request is missing; accepted: %s", kRequests);
  const std::string& name = kind->get_ref<const std::string&>();
  if (name == "status") return decode_status_request(json);
  if (name == "shutdown") return Request(ShutdownRequest{});
  if (name == "tenant") return decode_tenant_request(json);
  if (name == "set") return decode_set_request(json);
  if (name == "pods") return decode_pods_request(json);
  if (name == "job") return decode_job_request(json);
  if (name == "trace") return decode_trace_request(json);
  if (name == "turn") return decode_turn_request(json);
  return error_format("request '%.80s' is unknown; accepted: %s", name.c_str(), kRequests);
}

Result<StatusReport> decode_status(std::string_view line) {
  StatusReply reply;
  if (const auto read = read_json(line, json_place(reply)); !read) {
    return error_format("the scheduler's status cannot be read: %.180s", read.error().text);
  }
  if (!reply.ok) return refused_because(reply.error);
  return std::move(reply.report);
}

Result<uint64_t> decode_tenant(std::string_view line) {
  Result<Json> json = decode_reply(line);
  if (!json) return json.error();
  auto tenant = json->find("tenant");
  if (tenant == json->end() || !tenant->is_number_unsigned()) return error_format("the scheduler's answer names no tenant");
  return tenant->get<uint64_t>();
}

Result<TracePart> decode_trace_part(std::string_view line) {
  Result<Json> json = decode_reply(line);
  if (!json) return json.error();
  try {
    return TracePart{json->at("lines").get<std::vector<std::string>>(), json->at("next").get<uint64_t>(), json->at("more").get<bool>()};
  } catch (const Json::exception& problem) {
    return error_format("the scheduler's recording cannot be read: %.180s", problem.what());
  }
}

Result<TurnReport> decode_turn(std::string_view line) {
  Result<Json> json = decode_reply(line);
  if (!json) return json.error();
  try {
    return json->at("turn").get<TurnReport>();
  } catch (const Json::exception& problem) {
    return error_format("the scheduler's answer cannot be read: %.180s", problem.what());
  }
}

Result<std::vector<PodNotice>> decode_notices(std::string_view line) {
  Result<Json> json = decode_reply(line);
  if (!json) return json.error();
  auto notices = json->find("notices");
  if (notices == json->end()) return std::vector<PodNotice>();
  try {
    return notices->get<std::vector<PodNotice>>();
  } catch (const Json::exception& problem) {
    return error_format("the scheduler's notices cannot be read: %.180s", problem.what());
  }
}

Result<void> decode_ok(std::string_view line) {
  Result<Json> json = decode_reply(line);
  if (!json) return json.error();
  return {};
}

}  // namespace nvshare::protocol::admin
