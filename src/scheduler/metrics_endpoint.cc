#include "scheduler/metrics_endpoint.h"

#include <arpa/inet.h>
#include <poll.h>
#include <prometheus/text_serializer.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/parse.h"
#include "scheduler/log.h"
#include "scheduler/metrics.h"

namespace nvshare::scheduler {
namespace {

using protocol::admin::StatusReport;

constexpr int64_t kReportLivesNs = 100'000'000;
constexpr auto kReportPatience = std::chrono::seconds(1);
// A connection ends when its request is not there after so long, or its answer not read.
constexpr int64_t kRequestPatienceNs = 2'000'000'000;
constexpr int64_t kAnswerPatienceNs = 5'000'000'000;
// Connections at once. One more closes the oldest whose request is not there yet, so that half-sent ones keep nobody out.
constexpr size_t kConnectionsMax = 64;
constexpr size_t kRequestBytesMax = 8192;
constexpr int kBacklog = 128;
constexpr useconds_t kFailurePauseUs = 100'000;

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
    desk->wanted = false;  // also where the report fails: the next scrape asks anew
  }
  if (!look) return;
  StatusReport report = look();
  {
    std::lock_guard lock(desk->mutex);
    desk->report = std::move(report);
    desk->taken_at = monotonic_ns();
  }
  desk->changed.notify_all();
}

// The text of a scrape. Used by the server's thread only.
class Collector {
 public:
  Collector(EventLoop& loop, std::shared_ptr<Desk> desk, size_t tenants_max) : loop_(loop), desk_(std::move(desk)), metrics_(tenants_max) {}

  // Without a report in time there is nothing but what tells so.
  std::string collect() {
    std::optional<StatusReport> report = fresh_report();
    std::vector<prometheus::MetricFamily> families;
    if (report) families = metrics_.families(*report, look_at_process());
    prometheus::ClientMetric answered;
    answered.gauge.value = report ? 1 : 0;
    families.push_back({"nvshare_scheduler_answered",
                        "1 if the scheduler gave a report for this scrape; 0: it was too busy for a second.",
                        prometheus::MetricType::Gauge,
                        {answered}});
    return prometheus::TextSerializer().Serialize(families);
  }

 private:
  std::optional<StatusReport> fresh_report() {
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
  MetricsOfReport metrics_;
};

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  std::string host;  // as it was given
};

// "127.0.0.1:9402", "[::]:9402".
std::optional<Address> parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  Result<int64_t> port = parse_integer(text.substr(colon + 1), 0, 65535);
  if (!port) return std::nullopt;
  Address address;
  address.host = text.substr(0, colon);
  if (address.host.front() == '[' && address.host.back() == ']') {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(*port));
    if (inet_pton(AF_INET6, address.host.substr(1, address.host.size() - 2).c_str(), &v6->sin6_addr) != 1) return std::nullopt;
    address.length = sizeof *v6;
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(*port));
    if (inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) != 1) return std::nullopt;
    address.length = sizeof *v4;
  }
  return address;
}

std::string response(const char* status, const char* type, const std::string& body, bool head_only) {
  std::string text = std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + type +
                     "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n";
  return head_only ? text : text + body;
}

// As much of HTTP as a scraper needs: GET or HEAD, one request a connection. It never waits for one connection, so none holds up another.
class Server {
 public:
  Server(FileDescriptor listener, Collector collector)
      : listener_(std::move(listener)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), collector_(std::move(collector)) {}

  void run() {
    while (!ending_) {
      std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      int64_t next = 0;
      for (const Connection& connection : connections_) {
        polled.push_back({connection.socket.get(), static_cast<short>(connection.out.empty() ? POLLIN : POLLOUT), 0});
        if (next == 0 || connection.until < next) next = connection.until;
      }
      const int64_t wait_ms = next == 0 ? -1 : std::max<int64_t>((next - monotonic_ns()) / 1'000'000 + 1, 0);
      if (poll(polled.data(), polled.size(), static_cast<int>(wait_ms)) < 0 && errno != EINTR) return;
      if (ending_) return;
      size_t index = 2;
      for (auto at = connections_.begin(); at != connections_.end(); ++index) {
        const bool goes_on = polled[index].revents == 0 || serve(*at);
        at = goes_on && at->until > monotonic_ns() ? std::next(at) : connections_.erase(at);
      }
      answer_asked();
      if (polled[0].revents != 0) accept_all();
    }
  }

  // Any thread.
  void end() {
    ending_ = true;
    const uint64_t one = 1;
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  }

 private:
  struct Connection {
    FileDescriptor socket;
    int64_t until = 0;
    std::string in;
    std::string out;
    bool asked = false;  // for the metrics
    bool head_only = false;
  };

  void accept_all() {
    for (size_t i = 0; i < kConnectionsMax; ++i) {
      FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE) usleep(10'000);
        return;
      }
      if (connections_.size() >= kConnectionsMax) {
        auto oldest = std::find_if(connections_.begin(), connections_.end(), [](const Connection& c) { return c.out.empty() && !c.asked; });
        connections_.erase(oldest != connections_.end() ? oldest : connections_.begin());
      }
      Connection& connection = connections_.emplace_back();
      connection.socket = std::move(socket);
      connection.until = monotonic_ns() + kRequestPatienceNs;
    }
  }

  // False: it ends.
  bool serve(Connection& connection) {
    if (!connection.out.empty()) return flush(connection);
    char part[2048];
    const ssize_t got = recv(connection.socket.get(), part, sizeof part, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.in.append(part, static_cast<size_t>(got));
    if (connection.asked || connection.in.find("\r\n\r\n") != std::string::npos) return take_request(connection);
    if (connection.in.size() <= kRequestBytesMax) return true;
    return reply(connection, response("431 Request Header Fields Too Large", "text/plain", "", false));
  }

  bool take_request(Connection& connection) {
    const std::string line = connection.in.substr(0, connection.in.find("\r\n"));
    const size_t method_end = line.find(' ');
    const size_t target_end = line.find(' ', method_end + 1);
    if (method_end == std::string::npos || target_end == std::string::npos || line.compare(target_end + 1, 5, "HTTP/") != 0) {
      return reply(connection, response("400 Bad Request", "text/plain", "", false));
    }
    const std::string method = line.substr(0, method_end);
    std::string target = line.substr(method_end + 1, target_end - method_end - 1);
    target = target.substr(0, target.find('?'));
    if (method != "GET" && method != "HEAD") return reply(connection, response("405 Method Not Allowed", "text/plain", "", false));
    connection.head_only = method == "HEAD";
    if (target != "/metrics")
      return reply(connection, response("404 Not Found", "text/plain", "the metrics are at /metrics\n", connection.head_only));
    connection.asked = true;
    return true;
  }

  // All that asked at the same time have the same text.
  void answer_asked() {
    std::string text;
    for (auto at = connections_.begin(); at != connections_.end();) {
      auto here = at++;
      if (!std::exchange(here->asked, false)) continue;
      if (text.empty()) text = collector_.collect();
      if (!reply(*here, response("200 OK", "text/plain; version=0.0.4; charset=utf-8", text, here->head_only))) connections_.erase(here);
    }
  }

  static bool reply(Connection& connection, std::string text) {
    connection.out = std::move(text);
    connection.until = monotonic_ns() + kAnswerPatienceNs;
    return flush(connection);
  }

  static bool flush(Connection& connection) {
    while (!connection.out.empty()) {
      const ssize_t sent = send(connection.socket.get(), connection.out.data(), connection.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN;
      connection.out.erase(0, static_cast<size_t>(sent));
    }
    shutdown(connection.socket.get(), SHUT_WR);
    return false;
  }

  FileDescriptor listener_;
  FileDescriptor wake_;
  Collector collector_;
  std::atomic<bool> ending_ = false;
  std::list<Connection> connections_;  // the oldest first
};

class Endpoint final : public MetricsEndpoint {
 public:
  Endpoint(FileDescriptor listener, std::string url, size_t tenants_max, EventLoop& loop, Look look)
      : desk_(std::make_shared<Desk>()), server_(std::move(listener), Collector(loop, desk_, tenants_max)), url_(std::move(url)) {
    desk_->look = std::move(look);
    thread_ = std::thread([this] {
      while (!run_once()) usleep(kFailurePauseUs);
    });
  }

  ~Endpoint() override {
    silence();
    server_.end();
    thread_.join();
  }

  void stop_asking() override { silence(); }
  std::string url() const override { return url_; }

 private:
  // False: it failed, and is to run again.
  bool run_once() {
    try {
      server_.run();
      return true;
    } catch (const std::exception& problem) {
      spdlog::error("an error of the scheduler's own while it served metrics: {}", problem.what());
      return false;
    }
  }

  void silence() const {
    {
      std::lock_guard lock(desk_->mutex);
      desk_->look = nullptr;
    }
    desk_->changed.notify_all();
  }

  const std::shared_ptr<Desk> desk_;
  Server server_;
  const std::string url_;
  std::thread thread_;
};

uint16_t port_of(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

}  // namespace

Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::serve(const Options& options, EventLoop& loop, Look look) {
  const std::optional<Address> address = parse_address(options.address);
  if (!address)
    return error_format("cannot serve metrics at %.80s; accepted: an address and a port, as 127.0.0.1:9402 or [::]:9402",
                        options.address.c_str());
  FileDescriptor listener(socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (listener) setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!listener || bind(listener.get(), reinterpret_cast<const sockaddr*>(&address->storage), address->length) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return error_format("cannot serve metrics at %.80s (is the port in use?): %.120s", options.address.c_str(), std::strerror(errno));
  }
  const std::string url = "http://" + address->host + ":" + std::to_string(port_of(listener.get())) + "/metrics";
  // Signals are the loop's business: the server's thread inherits this.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto endpoint = std::make_unique<Endpoint>(std::move(listener), url, options.tenants_max, loop, std::move(look));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return std::unique_ptr<MetricsEndpoint>(std::move(endpoint));
}

}  // namespace nvshare::scheduler
