#include "scheduler/viewers/http_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "loop/event_loop.h"
#include "scheduler/http_address.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kRequestPatienceNs = 2'000'000'000;
constexpr int64_t kAnswerPatienceNs = 5'000'000'000;
// Of kConnectionsMax, those whose answer goes on.
constexpr size_t kFeedsMax = 32;
constexpr size_t kFeedsOfAddressMax = 16;
constexpr int kFeedBufferBytes = 64 << 10;  // the kernel's, for what the reader has not read
// One more closes the oldest whose request is not there yet, so that half-sent ones keep nobody out.
constexpr size_t kConnectionsMax = 64;
constexpr size_t kRequestBytesMax = 8192;
constexpr int kBacklog = 128;

uint16_t port_of(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

std::string address_of(const sockaddr_storage& peer) {
  const void* bytes = &reinterpret_cast<const sockaddr_in*>(&peer)->sin_addr;
  size_t length = sizeof(in_addr);
  if (peer.ss_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_addr;
    length = sizeof(in6_addr);
  }
  return {static_cast<const char*>(bytes), length};
}

// The header's value; empty where there is none, or more than one.
std::string header_of(const std::string& request, const char* name) {
  const size_t length = std::strlen(name);
  std::string value;
  bool found = false;
  for (size_t at = request.find("\r\n"); at != std::string::npos; at = request.find("\r\n", at + 2)) {
    const char* line = request.c_str() + at + 2;
    if (strncasecmp(line, name, length) != 0 || line[length] != ':') continue;
    if (std::exchange(found, true)) return "";
    const size_t begin = std::min(request.find_first_not_of(" \t", at + 2 + length + 1), request.size());
    value = request.substr(begin, std::max(request.find("\r\n", at + 2), begin) - begin);
    value.erase(value.find_last_not_of(" \t") + 1);
  }
  return value;
}

}  // namespace

HttpResponse plain_response(const char* status, std::string text) {
  HttpResponse response;
  response.status = status;
  if (!text.empty()) response.body = std::make_shared<const std::string>(std::move(text));
  return response;
}

Result<HttpListener> listen_http(const char* what, const std::string& text) {
  const std::optional<HttpAddress> address = parse_http_address(text);
  if (!address) return error_format("%s at %.80s; accepted: an address and a port, as 127.0.0.1:9402 or [::]:9402", what, text.c_str());
  HttpListener listener;
  listener.socket = FileDescriptor(socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (listener.socket) setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!listener.socket || bind(listener.socket.get(), reinterpret_cast<const sockaddr*>(&address->storage), address->length) != 0 ||
      listen(listener.socket.get(), kBacklog) != 0) {
    return error_format("%s at %.80s (is the port in use?): %.120s", what, text.c_str(), std::strerror(errno));
  }
  listener.url = "http://" + address->host + ":" + std::to_string(port_of(listener.socket.get()));
  return listener;
}

HttpServer::HttpServer(FileDescriptor listener, std::vector<std::unique_ptr<HttpSite>> sites)
    : listener_(std::move(listener)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), sites_(std::move(sites)) {}

void HttpServer::run() {
  while (!ending_) {
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    int64_t next = INT64_MAX;
    for (const Connection& connection : connections_) {
      const bool listens = connection.unsent() == 0;
      polled.push_back({connection.socket.get(), static_cast<short>(listens ? POLLIN : POLLOUT), 0});
      next = std::min({next, connection.until, connection.feed && listens ? connection.feed->due_at() : INT64_MAX});
    }
    const int64_t wait_ms = next == INT64_MAX ? -1 : std::max<int64_t>((next - monotonic_ns()) / 1'000'000 + 1, 0);
    if (poll(polled.data(), polled.size(), static_cast<int>(wait_ms)) < 0 && errno != EINTR) return;
    if (ending_) return;
    if (polled[1].revents != 0) {
      uint64_t ignored = 0;
      static_cast<void>(!::read(wake_.get(), &ignored, sizeof ignored));
    }
    size_t index = 2;
    for (auto at = connections_.begin(); at != connections_.end(); ++index) {
      const bool goes_on = polled[index].revents == 0 || serve(*at);
      at = goes_on && at->until > monotonic_ns() ? std::next(at) : connections_.erase(at);
    }
    answer_round();
    if (polled[0].revents != 0) accept_all();
  }
}

void HttpServer::end() {
  ending_ = true;
  look();
}

void HttpServer::look() {
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
}

void HttpServer::accept_all() {
  for (size_t i = 0; i < kConnectionsMax; ++i) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    FileDescriptor socket(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE) usleep(10'000);
      return;
    }
    if (connections_.size() >= kConnectionsMax) {
      auto oldest = std::find_if(connections_.begin(), connections_.end(), [](const Connection& c) { return c.head.empty() && !c.feed; });
      connections_.erase(oldest != connections_.end() ? oldest : connections_.begin());
    }
    Connection& connection = connections_.emplace_back();
    connection.socket = std::move(socket);
    connection.peer = address_of(peer);
    connection.until = monotonic_ns() + kRequestPatienceNs;
  }
}

bool HttpServer::serve(Connection& connection) { return connection.unsent() > 0 ? flush(connection) : take_input(connection); }

bool HttpServer::take_input(Connection& connection) {
  char part[2048];
  const ssize_t got = recv(connection.socket.get(), part, sizeof part, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  connection.in.append(part, static_cast<size_t>(got));
  if (connection.feed) return connection.in.size() <= kRequestBytesMax;  // it is answered, and says more
  if (connection.in.find("\r\n\r\n") != std::string::npos) return take_request(connection);
  if (connection.in.size() <= kRequestBytesMax) return true;
  return reply(connection, plain_response("431 Request Header Fields Too Large", ""));
}

bool HttpServer::take_request(Connection& connection) {
  const std::string line = connection.in.substr(0, connection.in.find("\r\n"));
  const size_t method_end = line.find(' ');
  const size_t target_end = line.find(' ', method_end + 1);
  if (method_end == std::string::npos || target_end == std::string::npos || line.compare(target_end + 1, 5, "HTTP/") != 0) {
    return reply(connection, plain_response("400 Bad Request", ""));
  }
  const std::string method = line.substr(0, method_end);
  if (method != "GET" && method != "HEAD") {
    HttpResponse refusal = plain_response("405 Method Not Allowed", "");
    refusal.headers = "Allow: GET, HEAD\r\n";
    return reply(connection, std::move(refusal));
  }
  connection.head_only = method == "HEAD";
  const std::string head = connection.in.substr(0, connection.in.find("\r\n\r\n"));
  HttpRequest request;
  request.path = line.substr(method_end + 1, target_end - method_end - 1);
  if (const size_t mark = request.path.find('?'); mark != std::string::npos) {
    request.query = request.path.substr(mark + 1);
    request.path.resize(mark);
  }
  request.host = header_of(head, "host");
  request.authorization = header_of(head, "authorization");
  connection.request = std::move(request);
  connection.until = monotonic_ns() + kAnswerPatienceNs;  // however long the round before took
  return true;
}

HttpResponse HttpServer::response_to(const HttpRequest& request) {
  std::string where;
  for (const auto& site : sites_) {
    if (std::optional<HttpResponse> response = site->answer(request)) return std::move(*response);
    where += site->where() + "\n";
  }
  return plain_response("404 Not Found", where);
}

bool HttpServer::may_go_on(const Connection& connection) const {
  size_t all = 0, of_address = 0;
  for (const Connection& other : connections_) {
    if (!other.feed) continue;
    ++all;
    if (other.peer == connection.peer) ++of_address;
  }
  return all < kFeedsMax && of_address < kFeedsOfAddressMax;
}

void HttpServer::answer_round() {
  for (auto at = connections_.begin(); at != connections_.end();) {
    auto here = at++;
    if (!here->request && (!here->feed || here->unsent() > 0)) continue;
    if (!(here->request ? answer(*here) : go_on(*here))) connections_.erase(here);
  }
  for (const auto& site : sites_) site->round_is_over();
}

bool HttpServer::answer(Connection& connection) {
  HttpResponse response = response_to(*std::exchange(connection.request, std::nullopt));
  if (response.feed && connection.head_only) response.feed = nullptr;
  if (response.feed && !may_go_on(connection)) {
    HttpResponse all = response.feed->once();
    all.headers = std::move(response.headers);
    response = std::move(all);
  }
  return reply(connection, std::move(response));
}

bool HttpServer::go_on(Connection& connection) {
  if (connection.feed->is_over()) return false;
  connection.body = connection.feed->next();
  if (!connection.body) return true;
  connection.until = monotonic_ns() + kAnswerPatienceNs;
  return flush(connection);
}

bool HttpServer::reply(Connection& connection, HttpResponse response) {
  connection.head = "HTTP/1.1 " + response.status + "\r\nContent-Type: " + response.type + "\r\n";
  // What goes on is as long as the connection.
  if (!response.feed) connection.head += "Content-Length: " + std::to_string(response.body ? response.body->size() : 0) + "\r\n";
  connection.head += "Connection: close\r\n" + response.headers + "\r\n";
  if (!connection.head_only) connection.body = std::move(response.body);
  connection.until = monotonic_ns() + kAnswerPatienceNs;
  connection.feed = std::move(response.feed);
  if (!connection.feed) return flush(connection);
  connection.in.clear();
  setsockopt(connection.socket.get(), SOL_SOCKET, SO_SNDBUF, &kFeedBufferBytes, sizeof kFeedBufferBytes);
  connection.body = connection.feed->next();
  return flush(connection);
}

bool HttpServer::flush(Connection& connection) {
  const size_t head = connection.head.size();
  while (connection.unsent() > 0) {
    const bool in_head = connection.sent < head;
    const std::string& part = in_head ? connection.head : *connection.body;
    const size_t at = in_head ? connection.sent : connection.sent - head;
    const ssize_t sent = send(connection.socket.get(), part.data() + at, part.size() - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    connection.sent += static_cast<size_t>(sent);
  }
  if (connection.feed) {
    connection.head.clear();
    connection.body = nullptr;
    connection.sent = 0;
    connection.until = INT64_MAX;
    return true;
  }
  shutdown(connection.socket.get(), SHUT_WR);
  return false;
}

}  // namespace nvshare::scheduler
