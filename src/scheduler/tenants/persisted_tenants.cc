// Tenants' file for the next scheduler: which processes one run made a tenant, the limits that hold, and what was used and is owed of GPUs'
// time as of about a second ago. Not what was saved up.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/json_nesting.h"
#include "protocol/json_record.h"
#include "scheduler/log.h"
#include "scheduler/persisted_file.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {
namespace {

using Json = nlohmann::json;

// That of the oldest scheduler that may read the file. Fields are added without a new one, each with a value for when it is missing.
constexpr int kFormat = 1;
constexpr int64_t kLimitMax = int64_t{1} << 50;

constexpr policy::TenantId kTenantIdMax = policy::TenantId{1} << 53;  // 1, 2, 3, ...: no scheduler comes so far

constexpr policy::Duration kDebtMax = int64_t{7200} * 1'000'000'000;
constexpr policy::Duration kTimeMax = int64_t{1} << 60;  // some 36 years

Json accounts_to_json(const Tenant& tenant) {
  std::map<std::string, KeptAccount> all = tenant.accounts;
  all.insert(tenant.former_accounts.begin(), tenant.former_accounts.end());
  Json list = Json::array();
  for (const auto& [gpu, account] : all) {
    list.push_back({{"gpu", gpu},
                    {"joined_at", account.joined_at},
                    {"debt", account.debt},
                    {"used", account.used},
                    {"throttled_time", account.throttled_time}});
  }
  return list;
}

// False: it is none.
bool read_account(const Json& entry, Tenant* tenant) {
  KeptAccount account;
  std::string gpu;
  try {
    entry.at("gpu").get_to(gpu);
    entry.at("joined_at").get_to(account.joined_at);
    entry.at("debt").get_to(account.debt);
    entry.at("used").get_to(account.used);
    entry.at("throttled_time").get_to(account.throttled_time);
  } catch (const Json::exception&) {
    return false;
  }
  const auto possible = [](policy::Duration time, policy::Duration most) { return time >= 0 && time <= most; };
  if (!possible(account.debt, kDebtMax) || !possible(account.joined_at, kTimeMax)) return false;
  if (!possible(account.used, kTimeMax) || !possible(account.throttled_time, kTimeMax)) return false;
  tenant->former_accounts[gpu] = account;
  return true;
}

Json to_json(const PodLimits& pod) {
  return {{"name", pod.name},
          {"gpu_memory_limit", pod.gpu_memory_limit},
          {"core_limit", pod.core_limit},
          {"core_reserved", pod.core_reserved},
          {"memory_on", pod.memory_on},
          {"sharing", pod.sharing},
          {"turn_seconds", pod.turn_seconds},
          {"member_of", pod.member_of},
          {"priority", pod.priority}};
}

void read(const Json& json, PodLimits* pod) {
  json.at("name").get_to(pod->name);
  json.at("gpu_memory_limit").get_to(pod->gpu_memory_limit);
  json.at("core_limit").get_to(pod->core_limit);
  pod->core_reserved = json.value("core_reserved", 0);
  pod->priority = json.value("priority", 0);
  pod->sharing = json.value("sharing", "node");
  pod->turn_seconds = json.value("turn_seconds", 0);
  pod->member_of = json.value("member_of", std::string());
  pod->memory_on = json.value("memory_on", std::map<std::string, int64_t>());
}

Json to_json(const Job& job) {
  Json steps = Json::array();
  for (const Job::Step& step : job.steps) steps.push_back({{"pid", step.pid}, {"start_time", step.start_time}});
  return {{"id", job.id},
          {"told", job.told},
          {"user", job.user},
          {"partition", job.partition},
          {"memory_percent", job.memory_percent},
          {"steps", steps},
          {"suspended", job.suspended},
          {"gone", job.gone}};
}

void read(const Json& json, Job* job) {
  json.at("id").get_to(job->id);
  json.at("told").get_to(job->told);
  json.at("user").get_to(job->user);
  json.at("partition").get_to(job->partition);
  json.at("memory_percent").get_to(job->memory_percent);
  job->suspended = json.value("suspended", false);
  json.at("gone").get_to(job->gone);
  for (const Json& step : json.at("steps")) job->steps.push_back({step.at("pid").get<pid_t>(), step.at("start_time").get<uint64_t>()});
}

std::string dumped(const Json& json) { return json.dump(1, ' ', false, Json::error_handler_t::replace); }

// What dumped() wrote, without its line ends and what is before a line's text: within strings there is no line end.
std::string& append_in_one_line(std::string_view dumped, std::string* to) {
  for (size_t at = 0; at < dumped.size();) {
    const size_t end = std::min(dumped.find('\n', at), dumped.size());
    to->append(dumped, at, end - at);
    at = std::min(dumped.find_first_not_of(' ', end + 1), dumped.size());
  }
  return *to;
}

Json to_json(const std::string& key, const Tenant& tenant) {
  Json json = {{"key", key},
               {"accounts", accounts_to_json(tenant)},
               {"id", tenant.id},
               {"name", tenant.name},
               {"kind", tenant.kind},
               {"gpu_memory_limit", tenant.gpu_memory_limit},
               {"gpu_memory_reserved", tenant.gpu_memory_reserved},
               {"core_limit", tenant.core_limit},
               {"core_ceiling", tenant.core_ceiling},
               {"pod", to_json(tenant.pod)},
               {"priority", tenant.priority},
               {"paused", tenant.suspended},
               {"sharing", tenant.sharing},
               {"gang_turns", tenant.gang_turns},
               {"root", tenant.root},
               {"root_start_time", tenant.root_start_time}};
  if (tenant.job) json["job"] = to_json(*tenant.job);
  if (!tenant.gpus.empty()) json["gpus"] = tenant.gpus;
  return json;
}

// Null, or what is wrong with these.
const char* fault_of(int64_t memory_limit, int core_limit, int priority) {
  if (core_limit < 1 || core_limit > 100) return "a compute limit that is not 1 to 100";
  if (priority < protocol::admin::kPriorityMin || priority > protocol::admin::kPriorityMax) return "an impossible priority";
  return memory_limit < 0 || memory_limit > kLimitMax ? "an impossible memory limit" : nullptr;
}

const char* fault_of(const PodLimits& pod) {
  for (const auto& [gpu, memory_limit] : pod.memory_on) {
    if (memory_limit < 0 || memory_limit > kLimitMax) return "an impossible memory limit on a GPU";
  }
  if (!pod.member_of.empty() && !protocol::admin::is_pod_uid(pod.member_of)) return "an impossible tenant of another pod";
  if (pod.core_reserved < 0 || pod.core_reserved > pod.core_limit) return "an impossible compute reservation";
  if (!protocol::admin::is_sharing_word(pod.sharing)) return "an unknown way of sharing";
  if (pod.turn_seconds < 0 || pod.turn_seconds > protocol::admin::kTurnSecondsMax) return "an impossible length of turns";
  return fault_of(pod.gpu_memory_limit, pod.core_limit, pod.priority);
}

const char* fault_of(const Tenant& tenant) {
  static const std::set<std::string> kinds = {"run", "job", "pod", "container", "unit", "process"};
  if (tenant.id == 0) return "an id of 0";
  if (kinds.count(tenant.kind) == 0) return "an unknown kind";
  if (const char* fault = fault_of(tenant.gpu_memory_limit, tenant.core_limit, tenant.priority)) return fault;
  if (tenant.core_ceiling < 1 || tenant.core_ceiling > 100) return "a compute ceiling that is not 1 to 100";
  if (tenant.gpu_memory_reserved < 0 || tenant.gpu_memory_reserved > kLimitMax) return "an impossible reservation";
  if (const char* fault = fault_of(tenant.pod)) return fault;
  if (!protocol::admin::is_sharing_word(tenant.sharing)) return "an unknown way of sharing";
  if ((tenant.kind == "run") != (tenant.root > 0 && tenant.root_start_time > 0))
    return "a run without its process, or a process that is none";
  if ((tenant.kind == "job") != tenant.job.has_value()) return "a job without its number, or a number that is none";
  if (tenant.job && (tenant.job->id == 0 || tenant.job->memory_percent < 0 || tenant.job->memory_percent > 100)) return "an impossible job";
  return nullptr;
}

// What the entry says, its key first. An error: the tenant cannot be taken over. An account that is none is left out of it.
Result<void> read_tenant(const Json& entry, std::string* key, Tenant* tenant, std::string* left_out) {
  try {
    *key = entry.at("key").get<std::string>();
    entry.at("id").get_to(tenant->id);
    tenant->name = printable(entry.at("name").get<std::string>());  // an earlier release wrote folders' names as they were
    entry.at("kind").get_to(tenant->kind);
    entry.at("gpu_memory_limit").get_to(tenant->gpu_memory_limit);
    tenant->gpu_memory_reserved = entry.value("gpu_memory_reserved", int64_t{0});
    tenant->gpus = entry.value("gpus", std::vector<std::string>());
    entry.at("core_limit").get_to(tenant->core_limit);
    tenant->core_ceiling = entry.value("core_ceiling", 100);
    read(entry.at("pod"), &tenant->pod);
    entry.at("priority").get_to(tenant->priority);
    tenant->suspended = entry.value("paused", false);
    tenant->sharing = entry.value("sharing", "node");
    entry.at("gang_turns").get_to(tenant->gang_turns);
    entry.at("root").get_to(tenant->root);
    entry.at("root_start_time").get_to(tenant->root_start_time);
    if (const auto job = entry.find("job"); job != entry.end()) read(*job, &tenant->job.emplace());
    for (const Json& account : entry.value("accounts", Json::array())) {
      if (!read_account(account, tenant)) *left_out += "; tenant '" + printable(key->c_str()) + "' has an impossible account";
    }
  } catch (const Json::exception& problem) {
    return error_format("%.160s", problem.what());
  }
  if (const char* fault = fault_of(*tenant)) return error_format("it has %s", fault);
  return {};
}

// A pod that was told of, with clients or without: its first program may come before the device plugin is back. An error: it is none.
Result<void> read_pod(const Json& entry, std::string* uid, PodLimits* limits) {
  try {
    entry.at("uid").get_to(*uid);
    read(entry, limits);
    limits->gone = entry.value("gone", false);
  } catch (const Json::exception& problem) {
    return error_format("%.160s", problem.what());
  }
  if (const char* fault = fault_of(*limits)) return error_format("it has %s", fault);
  return {};
}

// A tenant of one process that has ended has nothing to come back.
bool has_ended(const std::string& key, const Tenant& tenant) {
  pid_t pid = 0;
  unsigned long long start_time = 0;
  if (tenant.kind != "process" || std::sscanf(key.c_str(), "process:%d:%llu", &pid, &start_time) != 2) return false;
  return start_time_of(pid) != start_time;
}

}  // namespace

void Tenants::load() {
  std::vector<std::string> changes;
  const Result<std::optional<std::string>> content = file_->read(&changes);
  const auto refuse = [&](const std::string& why) {
    tenants_.clear();
    by_id_.clear();
    trees_.clear();
    pods.clear();
    next_id_ = 1;
    problem_ = why + "; tenants, their limits and runs of the previous scheduler are not known";
  };
  if (!content) return refuse(content.error().text);
  if (!content->has_value()) return;
  const std::string& file = file_->file();
  if (nests_too_deep(**content)) return refuse(file + " is damaged: it nests too deep");
  std::string left_out;  // each with what is wrong with it; all else holds
  try {
    const Json json = protocol::parse_record(**content);
    if (const int format = json.at("format").get<int>(); format != kFormat) {
      return refuse(file + " has format " + std::to_string(format) + ", known is " + std::to_string(kFormat));
    }
    next_id_ = json.at("next_id").get<policy::TenantId>();
    const Json& tenants = json.at("tenants");
    if (!tenants.is_array()) return refuse(file + " is damaged: its tenants are no list");
    for (const Json& entry : tenants) load_tenant(entry, &left_out);
    for (const std::string& line : changes) load_change(line, &left_out);
    // Since a later release than the rest; of an earlier one only pods with clients are known.
    for (const Json& entry : json.value("pods", Json::array())) load_pod(entry, &left_out);
  } catch (const Json::exception& problem) {
    return refuse(file + " is damaged: " + problem.what());
  }
  if (!left_out.empty()) {
    problem_ = file + " is damaged; left out of what the previous scheduler knew: " + left_out.substr(2);
  } else if (changes.empty()) {
    written_ = **content;
  }
}

void Tenants::load_tenant(const Json& entry, std::string* left_out) {
  Tenant tenant;
  std::string key;
  Result<void> read = read_tenant(entry, &key, &tenant, left_out);
  const bool is_given = tenant.id < next_id_;
  if (!is_given && tenant.id < kTenantIdMax) next_id_ = tenant.id + 1;  // clients may know it: it is nobody else's
  if (read && (!is_given || find(tenant.id) != nullptr || tenants_.contains(key)))
    read = error_format("it has an impossible id, or another's");
  if (!read) {
    *left_out += "; tenant '" + printable(key.c_str()) + "': " + read.error().text;
    return;
  }
  // As it was configured: the device plugin says it again, or that it holds no longer.
  if (tenant.kind == "pod" && key.starts_with("pod:") && tenant.pod.told()) pods.remember(key.substr(4), tenant.pod);
  if (!has_ended(key, tenant)) index(tenants_.insert_or_assign(key, tenant).first);
}

void Tenants::load_pod(const Json& entry, std::string* left_out) {
  std::string uid;
  PodLimits limits;
  if (auto read = read_pod(entry, &uid, &limits); !read) {
    *left_out += "; pod '" + printable(uid.c_str()) + "': " + read.error().text;
    return;
  }
  pods.restore(uid, limits);
}

// {"next_id": N, "tenant": what save() writes of it} or {"next_id": N, "forgotten": its key}.
void Tenants::load_change(const std::string& line, std::string* left_out) {
  try {
    if (nests_too_deep(line)) throw std::invalid_argument("it nests too deep");
    const Json json = protocol::parse_record(line);
    keep_id(json.at("next_id").get<policy::TenantId>() - 1);
    const auto forgotten = json.find("forgotten");
    const std::string key = forgotten != json.end() ? forgotten->get<std::string>() : json.at("tenant").at("key").get<std::string>();
    std::optional<Tenant> before;
    if (const auto at = tenants_.find(key); at != tenants_.end()) {
      before = at->second;
      forget(at);
    }
    if (forgotten != json.end()) return;
    const size_t known_faults = left_out->size();
    load_tenant(json.at("tenant"), left_out);
    // What cannot be taken over changes nothing.
    if (left_out->size() > known_faults && before && !tenants_.contains(key)) index(tenants_.emplace(key, *before).first);
  } catch (const std::exception& problem) {
    *left_out += "; a change: " + std::string(problem.what()).substr(0, 160);
  }
}

void Tenants::keep_id(policy::TenantId id) {
  if (id < kTenantIdMax) next_id_ = std::max(next_id_, id + 1);
}

const std::string& Tenants::text_of(const std::string& key, const Tenant& tenant, bool* is_new) {
  const auto [at, was_added] = lines_.try_emplace(key);
  *is_new = was_added || at->second.tenant != tenant;
  if (*is_new) at->second = {tenant, dumped(to_json(key, tenant))};
  return at->second.text;
}

Tenants::~Tenants() {
  if (is_unsaved_ || (file_ && file_->is_behind())) save();
}

void Tenants::save_changes(policy::TenantId changed) {
  if (!file_) return;
  if (changed != 0) touched_.insert(changed);
  std::string lines;
  const std::string begin = "{\"next_id\":" + std::to_string(next_id_) + ",";
  for (const std::string& key : forgotten_)
    lines.append(begin).append("\"forgotten\":").append(Json(key).dump(-1, ' ', false, Json::error_handler_t::replace)).append("}\n");
  for (const policy::TenantId id : touched_) {
    const auto at = by_id_.find(id);
    if (at == by_id_.end()) continue;
    const auto& [key, tenant] = *at->second;
    bool is_new = false;
    const std::string& text = text_of(key, tenant, &is_new);
    if (is_new) append_in_one_line(text, &lines.append(begin).append("\"tenant\":")).append("}\n");
  }
  if (!lines.empty() && !file_->append(lines)) return save();
  is_unsaved_ = false;
  touched_.clear();
  forgotten_.clear();
}

void Tenants::save() {
  is_unsaved_ = false;
  touched_.clear();
  forgotten_.clear();
  if (!file_) return;
  Json told = Json::array();
  for (const auto& [uid, limits] : pods.all()) {
    Json& one = told.emplace_back(to_json(limits));
    one["uid"] = uid;
    if (limits.gone) one["gone"] = true;
  }
  std::string content = "{\"format\": " + Json(kFormat).dump() + ",\n\"next_id\": " + std::to_string(next_id_) +
                        ",\n\"pods\": " + dumped(told) + ",\n\"tenants\": [";
  content.reserve(written_.size() + 4096);
  const char* before = "\n";
  for (const auto& [key, tenant] : tenants_) {
    bool is_new = false;
    content.append(before).append(text_of(key, tenant, &is_new));
    before = ",\n";
  }
  content += "\n]}\n";
  if (content == written_ && !file_->is_behind()) return problem_.clear();
  Result<void> written = file_->write(content);
  problem_ = written ? "" : written.error().text;
  if (written) written_ = std::move(content);
}

}  // namespace nvshare::scheduler
