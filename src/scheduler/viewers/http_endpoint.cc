#include "scheduler/viewers/http_endpoint.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "scheduler/http_address.h"
#include "scheduler/log.h"
#include "scheduler/viewers/http_server.h"
#include "scheduler/viewers/metrics_site.h"
#include "scheduler/viewers/page_site.h"

namespace nvshare::scheduler {
namespace {

constexpr useconds_t kFailurePauseUs = 100'000;

class Endpoint final : public HttpEndpoint {
 public:
  Endpoint(std::shared_ptr<ReportDesk> desk, std::shared_ptr<PastDesk> past, HttpListener listener,
           std::vector<std::unique_ptr<HttpSite>> sites)
      : desk_(std::move(desk)),
        past_(std::move(past)),
        server_(std::move(listener.socket), std::move(sites)),
        url_(std::move(listener.url)) {
    thread_ = std::thread([this] {
      while (!run_once()) usleep(kFailurePauseUs);
    });
  }

  ~Endpoint() override {
    stop_asking();
    server_.end();
    thread_.join();
  }

  void changed(uint64_t changes, ReportDesk::OnGpus on_gpus) override {
    desk_->changed(changes, std::move(on_gpus));
    server_.look();
  }
  void stop_asking() override {
    desk_->close();
    past_->close();
  }
  std::string url() const override { return url_; }

 private:
  // False: it failed, and is to run again.
  bool run_once() {
    try {
      server_.run();
      return true;
    } catch (const std::exception& problem) {
      spdlog::error("an error of the scheduler's own while it served {}: {}", url_, problem.what());
      return false;
    }
  }

  const std::shared_ptr<ReportDesk> desk_;
  const std::shared_ptr<PastDesk> past_;
  HttpServer server_;
  const std::string url_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpEndpoint>> HttpEndpoint::serve(const Options& options, EventLoop& loop, ReportDesk::Look look,
                                                          PastDesk::Read read_past) {
  const std::shared_ptr<ReportDesk> desk = ReportDesk::open(loop, std::move(look));
  const std::shared_ptr<PastDesk> past = PastDesk::open(loop, std::move(read_past));
  const char* what = options.metrics ? "cannot serve metrics" : "cannot serve the page";
  std::vector<std::unique_ptr<HttpSite>> sites;
  if (options.metrics) {
    Result<std::unique_ptr<HttpSite>> metrics = make_metrics_site(desk, options.tenants_max, is_loopback(options.address));
    if (!metrics) return error_format("%s at %.80s: %.200s", what, options.address.c_str(), metrics.error().text);
    sites.push_back(std::move(*metrics));
  }
  if (options.page) sites.push_back(make_page_site(desk, past, options.page_token, options.page_feed_lives_ns));
  Result<HttpListener> listener = listen_http(what, options.address);
  if (!listener) return listener.error();
  // Signals are the loop's business: the server's thread inherits this.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto endpoint = std::make_unique<Endpoint>(desk, past, std::move(*listener), std::move(sites));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return std::unique_ptr<HttpEndpoint>(std::move(endpoint));
}

}  // namespace nvshare::scheduler
