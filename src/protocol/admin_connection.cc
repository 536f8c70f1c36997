#include "protocol/admin_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "protocol/paths.h"

namespace nvshare::protocol::admin {
namespace {

constexpr size_t kReplyBytesMax = 64u << 20;  // a status of thousands of clients is far below

using Clock = std::chrono::steady_clock;

int remaining_ms(Clock::time_point deadline) {
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left > 0 ? static_cast<int>(left) : 0;
}

}  // namespace

Result<AdminConnection> AdminConnection::open(const std::string& runtime_directory, Mode mode) {
  const std::string path = runtime_directory + protocol::kAdminSocket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return error_format("socket path %s is too long", path.c_str());
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);

  FileDescriptor socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (mode == Mode::kNonBlocking ? SOCK_NONBLOCK : 0), 0));
  if (!socket_fd) return error_format("cannot make a socket: %s", strerror(errno));
  if (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EACCES || errno == EPERM)
      return error_format("%s: permission denied; it answers root and the scheduler's own user", path.c_str());
    if (errno == EAGAIN) return error_format("%s: as many connections wait there as may", path.c_str());
    if (errno == ENOENT || errno == ECONNREFUSED) return error_format("no scheduler answers at %s", path.c_str());
    return error_format("%s: %s", path.c_str(), strerror(errno));
  }
  return AdminConnection(std::move(socket_fd), path);
}

Result<void> AdminConnection::begin(const protocol::admin::Request& request) {
  unsent_ = protocol::admin::encode(request);
  if (auto sent = go_on(); !sent) return sent.error();
  return {};
}

Result<bool> AdminConnection::go_on() {
  size_t sent = 0;
  while (sent < unsent_.size()) {
    ssize_t n = send(socket_.get(), unsent_.data() + sent, unsent_.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    // Closed: a client that is refused is told why before that, which is there to be read.
    if (n < 0 && errno == EPIPE) sent = unsent_.size();
    if (n < 0 && errno != EPIPE) return error_format("cannot send to %s: %s", path_.c_str(), strerror(errno));
    if (n > 0) sent += static_cast<size_t>(n);
  }
  unsent_.erase(0, sent);
  return unsent_.empty();
}

Result<std::string> AdminConnection::ask(const protocol::admin::Request& request, int timeout_ms) {
  if (auto ok = begin(request); !ok) return ok.error();
  return read_line(timeout_ms);
}

Result<protocol::admin::StatusReport> AdminConnection::status() {
  auto line = ask(protocol::admin::StatusRequest{.brief = true});
  if (!line) return line.error();
  return protocol::admin::decode_status(*line);
}

std::optional<std::string> AdminConnection::line_there() {
  const size_t end = received_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

Result<void> AdminConnection::receive() {
  if (received_.size() > kReplyBytesMax) return error_format("%s answered with more than %zu bytes", path_.c_str(), kReplyBytesMax);
  char buffer[65536];
  const ssize_t n = recv(socket_.get(), buffer, sizeof buffer, 0);
  if (n < 0 && errno == EINTR) return {};
  if (n < 0) return error_format("%s: %s", path_.c_str(), strerror(errno));
  if (n == 0) return error_format("%s closed the connection without an answer", path_.c_str());
  received_.append(buffer, static_cast<size_t>(n));
  return {};
}

Result<std::optional<std::string>> AdminConnection::take() {
  while (true) {
    if (auto line = line_there()) return line;
    pollfd now{socket_.get(), POLLIN, 0};
    if (poll(&now, 1, 0) <= 0) return std::optional<std::string>();
    if (auto ok = receive(); !ok) return ok.error();
  }
}

Result<std::string> AdminConnection::read_line(int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    if (auto line = line_there()) return *line;
    pollfd wait{socket_.get(), POLLIN, 0};
    int ready = poll(&wait, 1, remaining_ms(deadline));
    if (ready < 0 && errno != EINTR) return error_format("waiting for %s: %s", path_.c_str(), strerror(errno));
    if (ready == 0) return error_format("%s did not answer within %d ms", path_.c_str(), timeout_ms);
    if (ready < 0) continue;
    if (auto ok = receive(); !ok) return ok.error();
  }
}

}  // namespace nvshare::protocol::admin
