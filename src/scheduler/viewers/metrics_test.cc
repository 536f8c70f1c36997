#include "scheduler/viewers/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <tuple>

namespace nvshare::scheduler {
namespace {

using prometheus::MetricFamily;
using protocol::admin::StatusReport;
using protocol::admin::UsageReport;

using SeriesId = std::tuple<std::string, std::string>;  // family, labels as text

std::map<SeriesId, double> series_of(const std::vector<MetricFamily>& families) {
  std::map<SeriesId, double> all;
  for (const MetricFamily& family : families) {
    for (const auto& metric : family.metric) {
      std::string labels;
      for (const auto& label : metric.label) labels += label.name + "=" + label.value + ";";
      const double value = family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
      EXPECT_TRUE(all.emplace(SeriesId{family.name, labels}, value).second) << family.name << " twice with " << labels;
    }
  }
  return all;
}

StatusReport report_of(const std::vector<uint64_t>& tenants, uint64_t turns) {
  StatusReport report;
  report.gpus.emplace_back().uuid = "GPU-1";
  for (uint64_t id : tenants) {
    auto& tenant = report.tenants.emplace_back();
    tenant.id = id;
    tenant.name = "same";
    UsageReport& usage = tenant.usage.emplace_back();
    usage.gpu = "GPU-1";
    usage.turns = turns + id;
    auto& client = report.clients.emplace_back();
    client.tenant = id;
    client.gpu = "GPU-1";
    client.state = "idle";
    client.allocated = 100;
  }
  return report;
}

std::string labels(const char* name, uint64_t id) {
  return std::string("gpu=GPU-1;tenant=") + name + ";tenant_id=" + std::to_string(id) + ";";
}

TEST(Metrics, EachTrustGroupsDaemonHasItsSeries) {
  StatusReport report = report_of({1}, 1);
  report.mps.push_back({1000, "", "serving", 7, 2, 0, ""});
  report.mps.push_back({1000, "team", "down", 0, 0, 3, "it has ended"});
  const auto series = series_of(MetricsOfReport(10).families(report, {}));
  EXPECT_EQ(series.at({"nvshare_mps_processes", "user=1000;group=;"}), 2);
  EXPECT_EQ(series.at({"nvshare_mps_serving", "user=1000;group=;"}), 1);
  EXPECT_EQ(series.at({"nvshare_mps_serving", "user=1000;group=team;"}), 0);
  EXPECT_EQ(series.at({"nvshare_mps_ends_total", "user=1000;group=team;"}), 3);
}

TEST(Metrics, LabelsAreShortUtf8WithoutControlCharacters) {
  EXPECT_EQ(label_text("train \"a\\b\""), "train \"a\\b\"");  // escaped by the serializer
  EXPECT_EQ(label_text("a\nb\x7f"), "a?b?");
  EXPECT_EQ(label_text("训练"), "训练");
  EXPECT_EQ(label_text("a\xff\xc0\xaf\xed\xa0\x80z"), "a??????z");  // no UTF-8, overlong, a surrogate
  EXPECT_EQ(label_text("\xe8\xae"), "??");                          // cut off
  EXPECT_EQ(label_text("\xc2\x85"), "??");                          // a control character of two bytes
  const std::string cut = label_text(std::string(63, 'x') + "训");
  EXPECT_EQ(cut, std::string(63, 'x')) << "never in the middle of a character";
  EXPECT_EQ(label_text(std::string(1000, 'y')).size(), MetricsOfReport::kLabelBytesMax);
}

TEST(Metrics, TenantsBeyondTheBoundAreSummedUpAndNoCounterGoesBack) {
  MetricsOfReport metrics(2);
  const auto first = series_of(metrics.families(report_of({1, 2, 3, 4}, 10), {}));
  EXPECT_EQ(first.at({"nvshare_tenant_turns_total", labels("same", 1)}), 11);
  EXPECT_EQ(first.at({"nvshare_tenant_turns_total", labels("same", 2)}), 12);
  EXPECT_EQ(first.at({"nvshare_tenant_turns_total", labels("(others)", 0)}), 13 + 14);
  EXPECT_EQ(first.at({"nvshare_tenant_memory_allocated_bytes", labels("(others)", 0)}), 200);
  EXPECT_EQ(first.at({"nvshare_metrics_tenants_in_others", ""}), 2);
  EXPECT_FALSE(first.contains({"nvshare_tenant_turns_total", labels("same", 3)}));

  // One with series and one of the others leave: the one that stays among the others does not get the free place, what is gone stays
  // counted.
  const auto second = series_of(metrics.families(report_of({2, 4, 5}, 20), {}));
  EXPECT_FALSE(second.contains({"nvshare_tenant_turns_total", labels("same", 1)}));
  EXPECT_EQ(second.at({"nvshare_tenant_turns_total", labels("same", 5)}), 25) << "the free place is for who comes";
  EXPECT_FALSE(second.contains({"nvshare_tenant_turns_total", labels("same", 4)}));
  EXPECT_EQ(second.at({"nvshare_tenant_turns_total", labels("(others)", 0)}), 13 + 24);
  EXPECT_EQ(second.at({"nvshare_tenant_memory_allocated_bytes", labels("(others)", 0)}), 100);

  const auto third = series_of(metrics.families(report_of({2, 5}, 30), {}));
  EXPECT_EQ(third.at({"nvshare_tenant_turns_total", labels("(others)", 0)}), 13 + 24);
  EXPECT_EQ(third.at({"nvshare_metrics_tenants_in_others", ""}), 0);
}

TEST(Metrics, SeriesAreBoundedWhateverClientsClaim) {
  MetricsOfReport metrics(3);
  StatusReport report;
  for (int i = 0; i < 1000; ++i) report.gpus.emplace_back().uuid = "GPU-" + std::to_string(i);
  for (uint64_t id = 1; id <= 1000; ++id) {
    auto& tenant = report.tenants.emplace_back();
    tenant.id = id;
    tenant.name = std::string(500, 'n');
    for (const auto& gpu : report.gpus) tenant.usage.emplace_back().gpu = gpu.uuid;
    if (id == 5) break;
  }
  const auto all = series_of(metrics.families(report, {}));
  EXPECT_EQ(all.at({"nvshare_gpus", ""}), 1000);
  EXPECT_LT(all.size(), MetricsOfReport::kGpusMax * 120);
  for (const auto& [id, value] : all) EXPECT_LT(std::get<1>(id).size(), 200U);
}

TEST(Metrics, APausedTenantIsShown) {
  StatusReport report = report_of({1, 2}, 0);
  report.tenants[1].paused = true;
  MetricsOfReport metrics(10);
  const auto all = series_of(metrics.families(report, {}));
  EXPECT_EQ(all.at({"nvshare_tenant_paused", "tenant=same;tenant_id=1;"}), 0);
  EXPECT_EQ(all.at({"nvshare_tenant_paused", "tenant=same;tenant_id=2;"}), 1);
}

// The names of metrics of ours in a file.
std::set<std::string> metrics_named_in(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string content = text.str();
  static const std::regex kName("\\bnvshare_[a-z_]+");
  return {std::sregex_token_iterator(content.begin(), content.end(), kName), std::sregex_token_iterator()};
}

TEST(Metrics, MetricsThatRulesAndTheDashboardNameExist) {
  StatusReport report = report_of({1}, 0);
  report.gpus[0].nvml = true;
  report.tenants[0].memory.push_back({"GPU-1", 4096, 50, 0, false, 0, 0, 0});
  report.tenants[0].compute.emplace_back().gpu = "GPU-1";
  std::set<std::string> known;
  MetricsOfReport metrics(10);
  for (const MetricFamily& family : metrics.families(report, {})) known.insert(family.name);
  for (const char* file : {"rules.yml", "grafana-dashboard.json"}) {
    const auto named = metrics_named_in(std::string(MONITORING) + "/" + file);
    EXPECT_GT(named.size(), 5U) << file;
    for (const std::string& name : named)
      EXPECT_TRUE(known.contains(name)) << file << " names " << name << ", which the scheduler does not have";
  }
}

TEST(Metrics, WhatIsNotKnownHasNoSeries) {
  MetricsOfReport metrics(10);
  StatusReport report = report_of({1}, 0);
  report.tenants[0].memory.push_back({"GPU-1", 0, 50, 0, false, 0, 0, 0});
  const auto without = series_of(metrics.families(report, {}));
  EXPECT_FALSE(without.contains({"nvshare_tenant_memory_limit_bytes", labels("same", 1)})) << "there is no limit";
  EXPECT_FALSE(without.contains({"nvshare_gpu_memory_foreign_bytes", "gpu=GPU-1;"})) << "nobody can tell without NVML";
  EXPECT_FALSE(without.contains({"nvshare_tenant_compute_limit_ratio", labels("same", 1)}));

  report.tenants[0].memory[0].limit = 4096;
  report.tenants[0].gpu_core_limit = 40;
  auto& compute = report.tenants[0].compute.emplace_back();
  compute.gpu = "GPU-1";
  compute.quota = 25;
  compute.share_window = 24.5;
  report.gpus[0].nvml = true;
  report.gpus[0].foreign = 7;
  const auto with = series_of(metrics.families(report, {}));
  EXPECT_EQ(with.at({"nvshare_tenant_memory_limit_bytes", labels("same", 1)}), 4096);
  EXPECT_EQ(with.at({"nvshare_gpu_memory_foreign_bytes", "gpu=GPU-1;"}), 7);
  EXPECT_DOUBLE_EQ(with.at({"nvshare_tenant_compute_limit_ratio", labels("same", 1)}), 0.4);
  EXPECT_DOUBLE_EQ(with.at({"nvshare_tenant_compute_quota_ratio", labels("same", 1)}), 0.25);
  EXPECT_DOUBLE_EQ(with.at({"nvshare_tenant_compute_share_ratio", labels("same", 1)}), 0.245);
}

}  // namespace
}  // namespace nvshare::scheduler
