#include "scheduler/viewers/metrics_site.h"

#include <prometheus/text_serializer.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "scheduler/http_address.h"
#include "scheduler/viewers/metrics.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kReportLivesNs = 100'000'000;

ProcessFigures look_at_process() {
  ProcessFigures figures;
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  figures.cpu_seconds = static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
  if (FILE* file = std::fopen("/proc/self/statm", "re")) {
    unsigned long size = 0, resident = 0;
    if (std::fscanf(file, "%lu %lu", &size, &resident) == 2) {
      figures.resident_bytes = static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
    }
    std::fclose(file);
  }
  return figures;
}

class MetricsSite final : public HttpSite {
 public:
  MetricsSite(std::shared_ptr<ReportDesk> desk, size_t tenants_max, bool on_loopback)
      : desk_(std::move(desk)), on_loopback_(on_loopback), metrics_(tenants_max) {}

  std::optional<HttpResponse> answer(const HttpRequest& request) override {
    if (request.path != "/metrics") return std::nullopt;
    // A browser always says one.
    if (on_loopback_ && !request.host.empty() && !is_named_by_nobody(request.host)) {
      return plain_response("403 Forbidden", "ask by IP address, or as localhost\n");
    }
    if (!text_) text_ = std::make_shared<const std::string>(collect());
    HttpResponse response;
    response.type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = text_;
    return response;
  }
  // All that asked at the same time have the same text.
  void round_is_over() override { text_.reset(); }
  std::string where() const override { return "the metrics are at /metrics"; }

 private:
  // Without a report in time there is nothing but what tells so.
  std::string collect() {
    const ReportDesk::Report report = desk_->fresh(kReportLivesNs);
    std::vector<prometheus::MetricFamily> families;
    if (report) families = metrics_.families(report->report(), look_at_process());
    prometheus::ClientMetric answered;
    answered.gauge.value = report ? 1 : 0;
    families.push_back({"nvshare_scheduler_answered",
                        "1 if the scheduler gave a report for this scrape; 0: it was too busy for a second.",
                        prometheus::MetricType::Gauge,
                        {answered}});
    return prometheus::TextSerializer().Serialize(families);
  }

  const std::shared_ptr<ReportDesk> desk_;
  const bool on_loopback_;
  MetricsOfReport metrics_;
  std::shared_ptr<const std::string> text_;
};

}  // namespace

Result<std::unique_ptr<HttpSite>> make_metrics_site(std::shared_ptr<ReportDesk> desk, size_t tenants_max, bool on_loopback) {
  return std::unique_ptr<HttpSite>(std::make_unique<MetricsSite>(std::move(desk), tenants_max, on_loopback));
}

}  // namespace nvshare::scheduler
