// In place of metrics_endpoint.cc where the build has no prometheus-cpp.
#include "scheduler/metrics_endpoint.h"

namespace nvshare::scheduler {

Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::serve(const Options& options, EventLoop&, Look look) {
  look = nullptr;
  return error_format(
      "metrics at %.80s: this nvshare-scheduler was built without prometheus-cpp, so it has none; leave metrics_address off",
      options.address.c_str());
}

}  // namespace nvshare::scheduler
