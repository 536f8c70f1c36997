// Serves the scheduler's metrics over HTTP to Prometheus, at /metrics, on a thread of its own. A scrape asks the loop for a report, as an
// admin's `status` does, and waits for it at most a second; scrapes that come together share one, and no report is made more often
// than ten times a second, so that however many ask, scheduling is not held up. All text is made on the server's thread, which waits for no
// connection: one whose request is not there within two seconds ends, and the 65th that is open ends the oldest such.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "protocol/admin.h"
#include "scheduler/event_loop.h"

namespace nvshare::scheduler {

class MetricsEndpoint {
 public:
  struct Options {
    std::string address;  // "127.0.0.1:9402", "[::]:9402"; port 0: any free one
    size_t tenants_max = 0;
  };
  using Look = std::function<protocol::admin::StatusReport()>;  // on the loop's thread

  // The error names the address. A build without prometheus-cpp refuses always.
  static Result<std::unique_ptr<MetricsEndpoint>> serve(const Options& options, EventLoop& loop, Look look);
  // Takes milliseconds.
  virtual ~MetricsEndpoint() = default;

  // From the loop's thread, before the loop or what `look` needs goes away: no report is asked for from then on.
  virtual void stop_asking() = 0;

  virtual std::string url() const = 0;
};

}  // namespace nvshare::scheduler
