// In place of metrics_site.cc where the build has no prometheus-cpp.
#include "scheduler/viewers/metrics_site.h"

namespace nvshare::scheduler {

Result<std::unique_ptr<HttpSite>> make_metrics_site(std::shared_ptr<ReportDesk>, size_t, bool) {
  return error_format("this nvshare-scheduler was built without prometheus-cpp, so it has no metrics; leave metrics_address off");
}

}  // namespace nvshare::scheduler
