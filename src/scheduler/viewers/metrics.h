// The scheduler's report as Prometheus metrics: pure arithmetic on a StatusReport, and who gets series of its own. Names end in their unit
// (bytes, seconds, ratio), counters in _total. Not thread-safe.
//
// A tenant's name comes from a program or a pod, so it is bounded in length and cleaned. Series are bounded in number: the first
// `tenants_max` tenants have series of their own, later ones are summed up under the name "(others)" and the id 0 for as long as they live,
// also when a place becomes free: a counter must not move from one series to another. GPUs beyond kGpusMax (clients name GPUs where NVML
// does not) have none.
#pragma once

#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/admin.h"

namespace nvshare::scheduler {

// Of the process, from /proc; the standard names of Prometheus' client libraries.
struct ProcessFigures {
  double cpu_seconds = 0;
  double resident_bytes = 0;
};

class MetricsOfReport {
 public:
  static constexpr size_t kGpusMax = 64;
  static constexpr size_t kLabelBytesMax = 64;
  static constexpr char kOthers[] = "(others)";

  explicit MetricsOfReport(size_t tenants_max) : tenants_max_(tenants_max) {}

  std::vector<prometheus::MetricFamily> families(const protocol::admin::StatusReport& report, const ProcessFigures& process);

 private:
  using Usages = std::map<std::string, protocol::admin::UsageReport>;  // by GPU

  void sort_tenants(const protocol::admin::StatusReport& report);

  const size_t tenants_max_;
  std::set<uint64_t> own_;
  std::map<uint64_t, Usages> others_;  // as last seen
  Usages others_gone_;                 // of those that are forgotten
};

// At most kLabelBytesMax bytes of valid UTF-8 without control characters; what is not becomes '?'.
std::string label_text(std::string_view text);

}  // namespace nvshare::scheduler
