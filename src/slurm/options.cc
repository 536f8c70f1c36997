#include "slurm/options.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/parse.h"
#include "base/settings_table.h"
#include "protocol/admin.h"

namespace nvshare::slurm {
namespace {

namespace admin = protocol::admin;

constexpr char kAccepted[] =
    "accepted: memory=BYTES (such as 20G), cores=PERCENT (1 to 100), priority=NUMBER (-100 to 100), with commas between";
constexpr char kOption[] = "SLURM_NVSHARE";
constexpr int kShardsMax = 10'000;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

Result<void> take_memory(std::string_view text, int64_t* out) {
  Result<uint64_t> bytes = parse_bytes(text);
  if (!bytes) return bytes.error();
  if (*bytes == 0 || *bytes > static_cast<uint64_t>(admin::kMemoryMost)) return error_format("it must be 1 byte to 1024Ti");
  *out = static_cast<int64_t>(*bytes);
  return {};
}

Result<void> take_integer(std::string_view text, int64_t minimum, int64_t maximum, int* out) {
  Result<int64_t> value = parse_integer(text, minimum, maximum);
  if (!value) return value.error();
  *out = static_cast<int>(*value);
  return {};
}

Result<void> take(std::string_view name, std::string_view value, Request* request) {
  if (name == "memory") return take_memory(value, &request->memory.emplace());
  if (name == "cores") return take_integer(value, 1, 100, &request->cores.emplace());
  if (name == "priority") return take_integer(value, admin::kPriorityMin, admin::kPriorityMax, &request->priority.emplace());
  return error_format("there is no such thing to ask for");
}

using SiteSpec = settings::Spec<Site>;

Result<void> take_word(std::string_view text, std::string_view off, std::string_view on, bool* out) {
  if (text != off && text != on) return error_format("'%.*s' is neither", settings::shown(text), text.data());
  *out = text == on;
  return {};
}

const std::vector<SiteSpec>& site_table() {
  static const std::vector<SiteSpec> table = {
      {"runtime_dir", "an absolute path", "folder of the scheduler's sockets",
       [](Site& site, std::string_view text) { return settings::take_path(text, &site.runtime_dir); }},
      {"library", "an absolute path", "libnvshare.so on the nodes",
       [](Site& site, std::string_view text) { return settings::take_path(text, &site.library); }},
      {"jobs", "asked, all", "which jobs use nvshare: those that ask, or all",
       [](Site& site, std::string_view text) { return take_word(text, "asked", "all", &site.all_jobs); }},
      {"default_memory", "an amount of memory, such as 20G", "of jobs that do not say",
       [](Site& site, std::string_view text) { return take("memory", text, &site.defaults); }},
      {"default_cores", "1 to 100", "of jobs that do not say",
       [](Site& site, std::string_view text) { return take("cores", text, &site.defaults); }},
      {"default_priority", "-100 to 100", "of jobs that do not say",
       [](Site& site, std::string_view text) { return take("priority", text, &site.defaults); }},
      {"max_memory", "an amount of memory, such as 40G", "that any job has",
       [](Site& site, std::string_view text) { return take_memory(text, &site.max_memory); }},
      {"max_cores", "1 to 100", "that any job has",
       [](Site& site, std::string_view text) { return take_integer(text, 1, 100, &site.max_cores); }},
      {"max_priority", "-100 to 100", "that a user may ask for",
       [](Site& site, std::string_view text) { return take_integer(text, admin::kPriorityMin, admin::kPriorityMax, &site.max_priority); }},
      {"shards_per_gpu", "1 to 10000", "Count of shard in gres.conf, for each GPU",
       [](Site& site, std::string_view text) { return take_integer(text, 1, kShardsMax, &site.shards_per_gpu); }},
      {"memory_per_shard", "an amount of memory, such as 8G", "else a shard's part of the GPU's memory",
       [](Site& site, std::string_view text) { return take_memory(text, &site.memory_per_shard); }},
      {"suspend_time", "0 to 600 seconds", "that a suspended step may run on until its memory is out",
       [](Site& site, std::string_view text) { return take_integer(text, 0, kSuspendTimeMax, &site.suspend_time); }},
      {"comment", "no, yes", "whether a job's AdminComment gets its GPU time and memory at its end",
       [](Site& site, std::string_view text) { return take_word(text, "no", "yes", &site.comment); }},
  };
  return table;
}

// Of what is wrong with a value, without what is accepted: that is said of all three together.
int reason_length(const Error& error) {
  constexpr size_t kMost = 80;
  return static_cast<int>(std::min(std::string_view(error.text).find("; accepted"), kMost));
}

}  // namespace

Result<Request> parse_request(std::string_view text) {
  Request request;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
    if (auto ok = take(name, value, &request); !ok)
      return error_format("'%.*s': %.*s; %s", settings::shown(word), word.data(), reason_length(ok.error()), ok.error().text, kAccepted);
  }
  return request;
}

bool asks_by_environment(const Lookup& environment) {
  return environment(kOption) || environment("SLURM_NVSHARE_MEMORY") || environment("SLURM_NVSHARE_CORES") ||
         environment("SLURM_NVSHARE_PRIORITY");
}

Result<Request> with_environment(Request request, const Lookup& environment) {
  Request told;
  if (const auto all = environment(kOption)) {
    auto parsed = parse_request(*all);
    if (!parsed) return error_format("%s: %.230s", kOption, parsed.error().text);
    told = *parsed;
  }
  for (const char* name : {"memory", "cores", "priority"}) {
    const std::string variable = "SLURM_" + settings::variable_of(name);
    const auto value = environment(variable.c_str());
    if (!value) continue;
    if (auto ok = take(name, *value, &told); !ok)
      return error_format("%s: %.*s; %s", variable.c_str(), reason_length(ok.error()), ok.error().text, kAccepted);
  }
  if (!request.memory) request.memory = told.memory;
  if (!request.cores) request.cores = told.cores;
  if (!request.priority) request.priority = told.priority;
  return request;
}

Result<void> check(const Site& site, const Request& request) {
  if (request.memory && site.max_memory > 0 && *request.memory > site.max_memory)
    return error_format("memory=%lld is above this site's maximum; accepted: up to %lld bytes", static_cast<long long>(*request.memory),
                        static_cast<long long>(site.max_memory));
  if (request.cores && *request.cores > site.max_cores)
    return error_format("cores=%d is above this site's maximum; accepted: 1 to %d", *request.cores, site.max_cores);
  if (request.priority && *request.priority > site.max_priority)
    return error_format("priority=%d is above this site's maximum; accepted: %d to %d", *request.priority, admin::kPriorityMin,
                        site.max_priority);
  return {};
}

Grant decide(const Site& site, const Request& request, int shards) {
  const auto lower = [](int64_t a, int64_t b) { return a == 0 || b == 0 ? a + b : std::min(a, b); };
  Grant grant;
  const bool by_shards = shards > 0 && site.shards_per_gpu > 0;
  const int counted = std::clamp(shards, 0, site.shards_per_gpu);
  grant.cores = std::min(request.cores.value_or(by_shards ? 100 : site.defaults.cores.value_or(100)), site.max_cores);
  grant.memory = lower(request.memory.value_or(by_shards ? 0 : site.defaults.memory.value_or(0)), site.max_memory);
  // By default a job may have more than a user may ask for: that is the site's to say.
  grant.priority = request.priority ? std::min(*request.priority, site.max_priority) : site.defaults.priority.value_or(0);
  if (!by_shards) return grant;
  const int percent = std::max(1, 100 * counted / site.shards_per_gpu);
  grant.cores = std::min(grant.cores, percent);
  grant.by_shards = true;
  if (site.memory_per_shard > 0) {
    grant.memory = lower(grant.memory, site.memory_per_shard * counted);
  } else {
    grant.memory_percent = percent;
  }
  return grant;
}

Result<Site> parse_site(std::string_view text) {
  Site site;
  int number = 0;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text = newline == std::string_view::npos ? std::string_view() : text.substr(newline + 1);
    ++number;
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals));
    const SiteSpec* spec = settings::find(site_table(), name);
    if (equals == std::string_view::npos || spec == nullptr)
      return error_format("line %d: '%.*s' is no setting", number, settings::shown(name), name.data());
    const std::string given_as = "line " + std::to_string(number) + ": " + spec->name;
    if (auto ok = settings::apply(site, *spec, trimmed(line.substr(equals + 1)), given_as); !ok) return ok.error();
  }
  return site;
}

Result<Site> read_site(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) {
    if (errno == ENOENT) return Site();
    return error_format("cannot read %.180s: %s", file.c_str(), std::strerror(errno));
  }
  std::ostringstream text;
  text << stream.rdbuf();
  Result<Site> site = parse_site(text.str());
  if (!site) return error_format("%.100s, %.150s", file.c_str(), site.error().text);
  return site;
}

}  // namespace nvshare::slurm
