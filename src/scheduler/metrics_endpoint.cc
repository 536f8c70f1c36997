#include "scheduler/metrics_endpoint.h"

#include <arpa/inet.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "scheduler/metrics.h"

namespace nvshare::scheduler {
namespace {

using protocol::admin::StatusReport;

constexpr int64_t kReportLivesNs = 100'000'000;
constexpr auto kReportPatience = std::chrono::seconds(1);

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

// The last report, and the wish for another. The loop's thread and the server's share it; `mutex` guards all of it. Whoever holds it waits
// for nothing else; the loop holds it only to take or put a report.
struct Desk {
  std::mutex mutex;
  std::condition_variable changed;
  MetricsEndpoint::Look look;  // empty: the endpoint ends
  std::optional<StatusReport> report;
  int64_t taken_at = 0;
  bool wanted = false;
};

// On the loop's thread.
void answer(const std::shared_ptr<Desk>& desk) {
  MetricsEndpoint::Look look;
  {
    std::lock_guard lock(desk->mutex);
    look = desk->look;
  }
  if (!look) return;
  StatusReport report = look();
  {
    std::lock_guard lock(desk->mutex);
    desk->report = std::move(report);
    desk->taken_at = monotonic_ns();
    desk->wanted = false;
  }
  desk->changed.notify_all();
}

class Collector final : public prometheus::Collectable {
 public:
  Collector(EventLoop& loop, std::shared_ptr<Desk> desk, size_t tenants_max) : loop_(loop), desk_(std::move(desk)), metrics_(tenants_max) {}

  // On the server's threads. Without a report in time there is nothing but what tells so.
  std::vector<prometheus::MetricFamily> Collect() const override {
    std::optional<StatusReport> report = fresh_report();
    std::vector<prometheus::MetricFamily> families;
    if (report) {
      std::lock_guard lock(metrics_mutex_);
      families = metrics_.families(*report, look_at_process());
    }
    prometheus::ClientMetric answered;
    answered.gauge.value = report ? 1 : 0;
    families.push_back({"nvshare_scheduler_answered",
                        "1 if the scheduler gave a report for this scrape; 0: it was too busy for a second.",
                        prometheus::MetricType::Gauge,
                        {answered}});
    return families;
  }

 private:
  std::optional<StatusReport> fresh_report() const {
    std::unique_lock lock(desk_->mutex);
    const auto is_fresh = [&] { return desk_->report && monotonic_ns() - desk_->taken_at < kReportLivesNs; };
    if (is_fresh()) return desk_->report;
    const int64_t asked_at = monotonic_ns();
    if (desk_->look && !std::exchange(desk_->wanted, true)) {
      loop_.post([desk = desk_] { answer(desk); });
    }
    // Also what is older than kReportLivesNs by the time that this thread runs again is new enough.
    const auto is_answered = [&] { return !desk_->look || (desk_->report && desk_->taken_at >= asked_at); };
    desk_->changed.wait_for(lock, kReportPatience, is_answered);
    if (!desk_->look || !desk_->report || desk_->taken_at < asked_at) return std::nullopt;
    return desk_->report;
  }

  EventLoop& loop_;
  const std::shared_ptr<Desk> desk_;
  mutable std::mutex metrics_mutex_;  // guards metrics_; nothing else is locked under it
  mutable MetricsOfReport metrics_;
};

class Endpoint final : public MetricsEndpoint {
 public:
  Endpoint(const Options& options, EventLoop& loop, Look look) : desk_(std::make_shared<Desk>()) {
    desk_->look = std::move(look);
    collector_ = std::make_shared<Collector>(loop, desk_, options.tenants_max);
    // Two scrapers at a time; one that does not read or ask holds its thread for five seconds, others wait in the meantime.
    exposer_ = std::make_unique<prometheus::Exposer>(std::vector<std::string>{"listening_ports", options.address, "num_threads", "2",
                                                                              "request_timeout_ms", "5000", "enable_keep_alive", "no"});
    exposer_->RegisterCollectable(collector_);
    const std::vector<int> ports = exposer_->GetListeningPorts();
    port_ = ports.empty() ? 0 : ports[0];
    host_ = options.address.substr(0, options.address.rfind(':'));
  }

  // The server looks whether it shall end only every two seconds, or when somebody connects.
  ~Endpoint() override {
    silence();
    std::atomic<bool> ended = false;
    std::thread ender([&] {
      exposer_.reset();
      ended = true;
    });
    while (!ended) {
      connect_to_self();
      usleep(2000);
    }
    ender.join();
  }

  void stop_asking() override { silence(); }

  std::string url() const override { return "http://" + host_ + ":" + std::to_string(port_) + "/metrics"; }

 private:
  void silence() const {
    {
      std::lock_guard lock(desk_->mutex);
      desk_->look = nullptr;
    }
    desk_->changed.notify_all();
  }

  void connect_to_self() const {
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    const bool is_v6 = host_.front() == '[';
    v4.sin_family = AF_INET;
    v6.sin6_family = AF_INET6;
    v4.sin_port = v6.sin6_port = htons(static_cast<uint16_t>(port_));
    inet_pton(AF_INET, host_.c_str(), &v4.sin_addr);
    if (is_v6) inet_pton(AF_INET6, host_.substr(1, host_.size() - 2).c_str(), &v6.sin6_addr);
    const FileDescriptor socket(::socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto* address = is_v6 ? reinterpret_cast<const sockaddr*>(&v6) : reinterpret_cast<const sockaddr*>(&v4);
    // Whether it succeeds does not matter: it is tried again until the server has ended.
    (void)::connect(socket.get(), address, is_v6 ? sizeof v6 : sizeof v4);
  }

  const std::shared_ptr<Desk> desk_;
  std::shared_ptr<Collector> collector_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string host_;
  int port_ = 0;
};

}  // namespace

Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::serve(const Options& options, EventLoop& loop, Look look) {
  // Signals are the loop's business: the server's threads inherit this.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::unique_ptr<MetricsEndpoint> endpoint;
  std::string problem;
  try {
    endpoint = std::make_unique<Endpoint>(options, loop, std::move(look));
  } catch (const std::exception& thrown) {
    problem = thrown.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!endpoint)
    return error_format("cannot serve metrics at %.80s (is the port in use?): %.120s", options.address.c_str(), problem.c_str());
  return endpoint;
}

}  // namespace nvshare::scheduler
