// Prometheus' metrics at /metrics, for anybody who reaches the address; on the loopback not by a name that a web site may have made stand
// for it. No report is made for them more often than ten times a second.
#pragma once

#include <memory>

#include "base/result.h"
#include "scheduler/viewers/http_server.h"
#include "scheduler/viewers/report_desk.h"

namespace nvshare::scheduler {

// A build without prometheus-cpp has none: an error.
Result<std::unique_ptr<HttpSite>> make_metrics_site(std::shared_ptr<ReportDesk> desk, size_t tenants_max, bool on_loopback);

}  // namespace nvshare::scheduler
