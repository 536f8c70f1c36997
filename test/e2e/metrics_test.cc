// The scheduler's metrics as Prometheus sees them: a real scheduler and programs, scraped over HTTP, compared with its own report, checked
// by promtool and taken in by a real Prometheus, which then answers what the Grafana dashboard asks and computes the rules.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/fd.h"
#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

using protocol::admin::StatusReport;
using protocol::admin::UsageReport;
using Labels = std::map<std::string, std::string>;
using Samples = std::map<std::pair<std::string, Labels>, double>;

const char kOddName[] = "tr\"ain\\ing {é}, job=1";

// The body of a successful answer; empty otherwise.
std::string http_get(int port, const std::string& path) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return "";
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
  if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) return "";
  std::string answer;
  char part[8192];
  for (ssize_t got = 0; (got = recv(socket.get(), part, sizeof part, 0)) > 0;) answer.append(part, static_cast<size_t>(got));
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos || answer.find(" 200 ") > answer.find('\n') ? "" : answer.substr(body + 4);
}

int free_port() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return 0;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

std::string in_url(const std::string& text) {
  std::string out;
  char code[4];
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += c;
    } else {
      std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned char>(c));
      out += code;
    }
  }
  return out;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) text.replace(at, what.size(), with);
  return text;
}

nlohmann::json json_file(const std::string& path) { return nlohmann::json::parse(std::ifstream(path)); }

// Prometheus' text format; a line that is not of it fails the test.
class Scrape {
 public:
  explicit Scrape(const std::string& text) {
    size_t at = 0;
    while (at < text.size()) {
      const size_t end = std::min(text.find('\n', at), text.size());
      take(text.substr(at, end - at));
      at = end + 1;
    }
  }
  const Samples& samples() const { return samples_; }
  std::optional<double> value(const std::string& name, const Labels& labels = {}) const {
    const auto at = samples_.find({name, labels});
    return at == samples_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  void take(const std::string& line) {
    if (line.rfind("# TYPE ", 0) == 0) {
      EXPECT_TRUE(types_.insert(line.substr(7, line.find(' ', 7) - 7)).second) << "a second " << line;
      return;
    }
    if (line.rfind("# HELP ", 0) == 0) return;
    size_t at = std::min(line.find('{'), line.find(' '));
    const std::string name = line.substr(0, at);
    Labels labels;
    if (at < line.size() && line[at] == '{') at = take_labels(line, at + 1, &labels);
    ASSERT_LT(at, line.size()) << line;
    EXPECT_TRUE(samples_.emplace(std::pair{name, labels}, std::stod(line.substr(at + 1))).second) << "a second " << line;
  }
  // Up to the blank after the closing brace.
  static size_t take_labels(const std::string& line, size_t at, Labels* labels) {
    while (at < line.size() && line[at] != '}') {
      const size_t equals = line.find("=\"", at);
      if (equals == std::string::npos) return line.size();
      std::string value;
      size_t c = equals + 2;
      for (; c < line.size() && line[c] != '"'; ++c) {
        if (line[c] == '\\') ++c;
        value += line[c - 1] == '\\' && line[c] == 'n' ? '\n' : line[c];
      }
      (*labels)[line.substr(at, equals - at)] = value;
      at = c + 1 + (c + 1 < line.size() && line[c + 1] == ',' ? 1 : 0);
    }
    return at + 1;
  }

  std::set<std::string> types_;
  Samples samples_;
};

void expect_usage(Samples& out, const std::string& who, const Labels& labels, const UsageReport& usage) {
  const auto tell = [&](const std::string& name, auto value) { out[{who + name + "_total", labels}] = static_cast<double>(value); };
  const auto tell_time = [&](const std::string& name, int64_t ns) { tell(name + "_seconds", static_cast<double>(ns) / 1e9); };
  tell("_grants", usage.grants);
  tell("_turns", usage.turns);
  tell("_drops", usage.drops);
  tell("_unanswered_drops", usage.unanswered);
  tell("_failed_drains", usage.failed_drains);
  tell_time("_running", usage.running_ns);
  tell_time("_waiting", usage.waiting_ns);
  tell_time("_swapping", usage.swapping_ns);
  tell_time("_throttled", usage.throttled_ns);
  tell_time("_billed", usage.billed_ns);
  tell("_unmoved_bytes", usage.unmoved);
  tell("_prefetched_bytes", usage.prefetched);
  tell("_prefetched_in_vain_bytes", usage.prefetched_in_vain);
  for (const bool out_of : {true, false}) {
    Labels directed = labels;
    directed["direction"] = out_of ? "out" : "in";
    out[{who + "_swapped_bytes_total", directed}] = static_cast<double>(out_of ? usage.swapped_out : usage.swapped_in);
  }
}

// What a scrape must say of such a report.
Samples expected_of(const StatusReport& report) {
  Samples out;
  const auto tell = [&](const char* name, const Labels& labels, auto value) { out[{name, labels}] = static_cast<double>(value); };
  tell("nvshare_build_info", {{"version", report.version}}, 1);
  tell("nvshare_host_memory_budget_bytes", {}, report.host_memory_budget);
  tell("nvshare_host_memory_used_bytes", {}, report.host_memory_used);
  tell("process_start_time_seconds", {}, static_cast<double>(report.epoch) / 1e9);
  for (const auto& gpu : report.gpus) {
    const Labels labels = {{"gpu", gpu.uuid}};
    tell("nvshare_gpu_memory_size_bytes", labels, gpu.total);
    if (gpu.nvml) tell("nvshare_gpu_memory_foreign_bytes", labels, gpu.foreign);
    tell("nvshare_gpu_memory_overhead_bytes", labels, gpu.overhead);
    tell("nvshare_gpu_memory_safe_limit_bytes", labels, gpu.safe_limit);
    tell("nvshare_gpu_switches_total", labels, gpu.switches);
    expect_usage(out, "nvshare_gpu", labels, gpu.usage);
    for (const char* state : {"idle", "waiting", "loading", "running", "paused", "dropping", "unresponsive"}) {
      tell("nvshare_clients", {{"gpu", gpu.uuid}, {"state", state}},
           std::count_if(report.clients.begin(), report.clients.end(), [&](const auto& client) { return client.state == state; }));
    }
  }
  for (const auto& tenant : report.tenants) {
    const auto labels_of = [&](const std::string& gpu) {
      return Labels{{"gpu", gpu}, {"tenant", tenant.name}, {"tenant_id", std::to_string(tenant.id)}};
    };
    for (const UsageReport& usage : tenant.usage) {
      const Labels labels = labels_of(usage.gpu);
      expect_usage(out, "nvshare_tenant", labels, usage);
      int64_t allocated = 0, resident = 0, swapped = 0, clients = 0;
      for (const auto& client : report.clients) {
        if (client.tenant != tenant.id || client.gpu != usage.gpu) continue;
        ++clients;
        allocated += client.allocated;
        resident += client.resident;
        swapped += client.swapped;
      }
      tell("nvshare_tenant_clients", labels, clients);
      tell("nvshare_tenant_memory_allocated_bytes", labels, allocated);
      tell("nvshare_tenant_memory_resident_bytes", labels, resident);
      tell("nvshare_tenant_memory_swapped_bytes", labels, swapped);
    }
    for (const auto& memory : tenant.memory) {
      if (memory.limit > 0) tell("nvshare_tenant_memory_limit_bytes", labels_of(memory.gpu), memory.limit);
    }
    for (const auto& compute : tenant.compute) {
      tell("nvshare_tenant_compute_limit_ratio", labels_of(compute.gpu), tenant.gpu_core_limit / 100.0);
      tell("nvshare_tenant_compute_reserved_ratio", labels_of(compute.gpu), tenant.gpu_core_reserved / 100.0);
      tell("nvshare_tenant_compute_quota_ratio", labels_of(compute.gpu), compute.quota / 100);
      tell("nvshare_tenant_compute_share_ratio", labels_of(compute.gpu), compute.share_window / 100);
      if (compute.nvml_share < 0) continue;
      tell("nvshare_tenant_compute_nvml_ratio", labels_of(compute.gpu), compute.nvml_share / 100);
      tell("nvshare_tenant_compute_nvml_billed_ratio", labels_of(compute.gpu), compute.nvml_billed / 100);
    }
  }
  return out;
}

class Metrics : public ::testing::Test {
 protected:
  Metrics() : stage_(options()) {}
  static StageOptions options() {
    StageOptions options;
    options.scheduler["NVSHARE_METRICS_ADDRESS"] = "127.0.0.1:0";
    options.scheduler["NVSHARE_PAGE_ADDRESS"] = "127.0.0.1:0";  // the same address: one server for both
    return options;
  }
  int port() {
    const std::string log = stage_.scheduler().log();
    const size_t at = log.find("metrics at http://127.0.0.1:");
    return at == std::string::npos ? 0 : std::stoi(log.substr(at + 28));
  }
  std::string scrape() { return http_get(port(), "/metrics"); }

  // A scrape lies between two reports, and so does each of its values. Empty, or what is wrong.
  std::string compare() {
    const auto before = stage_.status();
    const Scrape seen(scrape());
    const auto after = stage_.status();
    if (!before || !after) return "no status";
    const Samples low = expected_of(*before), high = expected_of(*after);
    std::string wrong;
    for (const auto& [series, value] : low) {
      const auto other = high.find(series);
      const double second = other == high.end() ? value : other->second;
      const auto got = seen.value(series.first, series.second);
      const double slack = 1e-9 * std::max(std::abs(value), 1.0);
      if (got && *got >= std::min(value, second) - slack && *got <= std::max(value, second) + slack) continue;
      wrong += series.first + " of " + (series.second.contains("tenant") ? series.second.at("tenant") : "") + ": " +
               (got ? std::to_string(*got) : "missing") + ", not " + std::to_string(value) + " to " + std::to_string(second) + "\n";
    }
    // And no tenant's or GPU's series that the report does not know.
    for (const auto& [series, value] : seen.samples()) {
      const bool known = low.contains(series) || series.first.rfind("nvshare_tenant_", 0) != 0 || !series.second.contains("gpu") ||
                         series.first.ends_with("unswappable_bytes") || series.first.ends_with("charged_bytes") ||
                         series.first.ends_with("debt_seconds") || series.first.ends_with("compute_throttled");
      if (!known) wrong += series.first + " is not in the report\n";
    }
    return wrong;
  }
  void expect_agreement() {
    std::string wrong = "never looked";
    stage_.wait_until([&] { return (wrong = compare()).empty(); }, moments());
    EXPECT_EQ(wrong, "");
  }

  void check_with_promtool() {
    const std::string file = stage_.directory() + "/scrape.txt";
    std::ofstream(file) << scrape();
    Child& promtool = stage_.start_command("promtool", {"/bin/sh", "-c", "exec promtool check metrics < " + file}, false);
    EXPECT_EQ(promtool.wait(moments()), 0) << "127: promtool is missing; tools/install-dependencies.sh test";
    EXPECT_EQ(promtool.log(), "");
    stage_.forget(promtool);
  }
  // Early: it looks for its targets only five seconds after its start.
  void start_prometheus() {
    prometheus_port_ = free_port();
    ASSERT_GT(prometheus_port_, 0);
    const std::string config = stage_.directory() + "/prometheus.yml";
    std::ofstream(config) << "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"
                          << "rule_files: ['" << E2E_MONITORING << "/rules.yml']\nscrape_configs:\n"
                          << "- job_name: nvshare\n  static_configs: [{targets: ['127.0.0.1:" << port() << "']}]\n";
    prometheus_ = &stage_.start_command(
        "prometheus",
        {"/usr/bin/prometheus", "--config.file=" + config, "--log.level=warn", "--storage.tsdb.path=" + stage_.directory() + "/tsdb",
         "--web.listen-address=127.0.0.1:" + std::to_string(prometheus_port_)},
        false);
  }
  nlohmann::json query(const std::string& expression) const {
    const std::string body = http_get(prometheus_port_, "/api/v1/query?query=" + in_url(expression));
    const auto json = nlohmann::json::parse(body, nullptr, false);
    return json.is_object() && json.value("status", "") == "success" ? json["data"]["result"] : nlohmann::json::array();
  }

  // Why a query of the dashboard's would show nothing, or lack what its legend names; empty otherwise.
  std::string wrong_with(const nlohmann::json& target) const {
    std::string expression = target["expr"];
    for (const char* variable : {"$gpu", "$tenant"}) expression = replaced(expression, variable, ".*");
    const auto series = query(replaced(expression, "$__rate_interval", "1m"));
    if (series.empty()) return expression + " finds nothing\n";
    const std::string legend = target.value("legendFormat", "");
    for (size_t at = 0; (at = legend.find("{{", at)) != std::string::npos; ++at) {
      const std::string label = legend.substr(at + 2, legend.find("}}", at) - at - 2);
      for (const auto& one : series)
        if (!one["metric"].contains(label)) return expression + " has no label " + label + "\n";
    }
    return "";
  }

  // Every panel and variable of the dashboard has something to show.
  void check_dashboard() {
    const auto board = json_file(E2E_MONITORING "/grafana-dashboard.json");
    nlohmann::json asked;
    for (const auto& panel : board["panels"])
      for (const auto& target : panel["targets"]) asked.push_back(target);
    for (const auto& variable : board["templating"]["list"]) {
      const std::string text = variable["query"].is_object() ? variable["query"]["query"] : variable["query"];
      if (variable["type"] == "datasource") continue;
      const size_t open = text.find('('), comma = text.find(", ");
      ASSERT_EQ(text.substr(0, open), "label_values") << text;
      const std::string label = text.substr(comma + 2, text.size() - comma - 3);
      asked.push_back({{"expr", text.substr(open + 1, comma - open - 1)}, {"legendFormat", "{{" + label + "}}"}});
    }
    ASSERT_GT(asked.size(), 15U);
    std::string wrong;
    stage_.wait_until(
        [&] {
          wrong.clear();
          for (const auto& target : asked) wrong += wrong_with(target);
          return wrong.empty() || !prometheus_->running();
        },
        moments());
    EXPECT_EQ(wrong, "");
  }

  // Prometheus computes all of them; of the alerts that need no time none is due.
  void check_rules() {
    std::string wrong = "never looked";
    stage_.wait_until(
        [&] {
          const auto json = nlohmann::json::parse(http_get(prometheus_port_, "/api/v1/rules"), nullptr, false);
          if (!json.is_object() || json.value("status", "") != "success") return false;
          size_t rules = 0;
          wrong.clear();
          for (const auto& group : json["data"]["groups"]) {
            for (const auto& rule : group["rules"]) {
              ++rules;
              if (rule["health"] != "ok") wrong += rule["name"].get<std::string>() + ": " + rule["health"].get<std::string>() + "\n";
              if (rule.value("state", "") == "firing") wrong += rule["name"].get<std::string>() + " fires\n";
            }
          }
          if (rules < 8) wrong += "only " + std::to_string(rules) + " rules\n";
          return wrong.empty() || !prometheus_->running();
        },
        moments());
    EXPECT_EQ(wrong, "");
  }

  // What it has of a report that does not change any more.
  void check_with_prometheus(const StatusReport& report) {
    std::map<std::string, std::string> wanted, got;  // name, id and value by tenant
    for (const auto& tenant : report.tenants)
      wanted[tenant.name] = std::to_string(tenant.id) + ": " + std::to_string(tenant.usage.at(0).grants);
    stage_.wait_until([&] {
      got.clear();
      for (const auto& one : query("nvshare_tenant_grants_total")) {
        got[one["metric"].value("tenant", "")] = one["metric"].value("tenant_id", "") + ": " + one["value"][1].get<std::string>();
      }
      return got == wanted || !prometheus_->running();
    });
    EXPECT_EQ(got, wanted);
    EXPECT_EQ(query("up").at(0)["value"][1], "1");
    check_dashboard();
    check_rules();
    stage_.forget(*prometheus_);
  }

  Stage stage_;
  Child* prometheus_ = nullptr;
  int prometheus_port_ = 0;
};

TEST_F(Metrics, SayWhatTheReportSaysAndNeverGoBack) {
  stage_.start_scheduler();
  ASSERT_GT(port(), 0);
  if (kSlowness == 1) start_prometheus();
  // Two that do not fit together and so take turns; one of the first tenant's programs ends early.
  const Arguments big = {"hold", "--hold", "110M", "--go", stage_.go_file("end")};
  const Arguments brief = {"hold", "--hold", "2M", "--go", stage_.go_file("brief")};
  Child& limited = stage_.start_tenant("limited", {big, brief}, 200 << 20, 60);
  std::string script = "until [ -e " + stage_.go_file("odd") + " ]; do sleep 0.02; done; exec " + kWorkerPath;
  for (const std::string& word : big) script += " " + word;
  Child& odd = stage_.start_command("odd", {"/bin/sh", "-c", script}, true);
  stage_.make_tenant(kOddName, odd.pid());
  stage_.tell_to_go("odd");
  // All of them, and not between two pieces of their work.
  const auto both_of_limited = [&] {
    const std::string log = limited.log();
    return log.find("standing still") != log.rfind("standing still");
  };
  const auto stand_still = [&] {
    if (!odd.logged("standing still") || !both_of_limited()) return false;
    const auto report = stage_.status();
    return report && report->clients.size() == 3 && std::all_of(report->clients.begin(), report->clients.end(), [](const auto& client) {
             return client.turns > 0 && (client.state == "idle" || client.state == "running");
           });
  };
  ASSERT_TRUE(stage_.wait_until(stand_still));
  expect_agreement();
  EXPECT_TRUE(protocol::admin::decode_status(http_get(port(), "/status.json")));
  const Scrape first(scrape());
  const std::string uuid = stage_.status()->gpus.at(0).uuid;
  EXPECT_GT(first.value("nvshare_gpu_swapped_bytes_total", {{"gpu", uuid}, {"direction", "out"}}).value_or(0), 0) << "nothing had to move";
  if (kSlowness == 1) {
    const double resident = first.value("process_resident_memory_bytes").value_or(0);
    EXPECT_GT(resident, 1 << 20);
    EXPECT_LT(resident, 32 << 20);
    std::cout << "the scheduler's memory: " << static_cast<int>(resident) / 1024 << " KiB\n";
    check_with_promtool();
    check_with_prometheus(*stage_.status());
  }

  // A client leaves, then all: what they did stays counted.
  stage_.tell_to_go("brief");
  ASSERT_TRUE(stage_.wait_until([&] { return stage_.status()->clients.size() == 2; }));
  expect_agreement();
  const Scrape second(scrape());
  stage_.tell_to_go("end");
  stage_.expect_success_of_all();
  ASSERT_TRUE(stage_.wait_until([&] { return stage_.status()->clients.empty(); }));
  expect_agreement();
  const Scrape third(scrape());
  size_t counters = 0;
  for (const auto* later : {&second, &third}) {
    for (const auto& [series, value] : first.samples()) {
      const auto now = later->value(series.first, series.second);
      if (!series.first.ends_with("_total") || series.first.rfind("nvshare_", 0) != 0) continue;
      if (!now && later == &third && series.second.contains("tenant")) continue;  // a tenant that is forgotten
      ++counters;
      ASSERT_TRUE(now) << series.first << " is gone";
      EXPECT_GE(*now, value) << series.first;
    }
  }
  EXPECT_GT(counters, 40U);
  EXPECT_GE(third.value("nvshare_gpu_turns_total", {{"gpu", uuid}}).value_or(0), 3);
  stage_.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
