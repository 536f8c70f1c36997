// Serves metrics, the page or both over HTTP at one address, on a thread of its own. However many ask, scheduling is not held up: they
// share reports (report_desk.h), and all text is made on the server's thread.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "loop/event_loop.h"
#include "scheduler/viewers/page_site.h"
#include "scheduler/viewers/past_desk.h"
#include "scheduler/viewers/report_desk.h"

namespace nvshare::scheduler {

class HttpEndpoint {
 public:
  struct Options {
    std::string address;  // "127.0.0.1:9402", "[::]:9402"; port 0: any free one
    bool metrics = false;
    size_t tenants_max = 0;  // that have metrics of their own
    bool page = false;
    std::string page_token;  // empty: the page asks for none
    int64_t page_feed_lives_ns = kPageFeedLivesNs;
  };

  // The error names what cannot be served and the address.
  static Result<std::unique_ptr<HttpEndpoint>> serve(const Options& options, EventLoop& loop, ReportDesk::Look look,
                                                     PastDesk::Read read_past = {});
  // Takes milliseconds.
  virtual ~HttpEndpoint() = default;

  // admin::StatusReport::changes is another number now, and these are the last ones on each GPU (ReportDesk::changed): browsers that wait
  // for that are answered. Any thread.
  virtual void changed(uint64_t changes, ReportDesk::OnGpus on_gpus = {}) = 0;

  // From the loop's thread, before the loop or what `look` and `read_past` need goes away: nothing is asked for from then on.
  virtual void stop_asking() = 0;

  virtual std::string url() const = 0;  // "http://127.0.0.1:9402"
};

}  // namespace nvshare::scheduler
