#include "scheduler/admin_sockets.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "protocol/admin.h"
#include "scheduler/admin_peers.h"
#include "scheduler/log.h"

namespace nvshare::scheduler {
namespace {

constexpr size_t kReadBytes = 4096;
constexpr size_t kUnsentBytesMax = 16 << 20;

}  // namespace

AdminSockets::AdminSockets(EventLoop& loop, FileDescriptor listener, std::function<std::string(std::string_view)> answer)
    : loop_(loop),
      listener_(std::move(listener)),
      answer_(std::move(answer)),
      accept_watch_(loop, listener_.get(), [this] { accept_all(); }) {}

void AdminSockets::accept_all() {
  while (true) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    accept(std::move(socket));
  }
}

void AdminSockets::accept(FileDescriptor socket) {
  Result<void> allowed = may_administer(socket.get());
  if (allowed && connections_.size() >= kConnectionsMax) allowed = Result<void>(error_format("too many admin connections"));
  uint64_t id = next_++;
  Connection& connection = connections_[id];
  connection.socket = std::move(socket);
  connection.watch = Watch(
      loop_, connection.socket.get(), [this, id] { read(id); }, [this, id] { flush(id); });
  if (allowed) return;
  warnings_.warn("refused", monotonic_ns(), "refused an admin connection: {}", allowed.error().text);
  connection.out = protocol::admin::encode_error(allowed.error().text);
  connection.ends = true;
  flush(id);
}

void AdminSockets::read(uint64_t id) {
  Connection& connection = connections_.at(id);
  char bytes[kReadBytes];
  ssize_t length = recv(connection.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (length <= 0 || connection.ends) {
    connections_.erase(id);
    return;
  }
  connection.in.append(bytes, static_cast<size_t>(length));
  size_t begin = 0;
  for (size_t end = connection.in.find('\n'); end != std::string::npos; end = connection.in.find('\n', begin)) {
    connection.out += answer_(std::string_view(connection.in).substr(begin, end - begin));
    begin = end + 1;
  }
  connection.in.erase(0, begin);
  if (connection.in.size() > protocol::admin::kRequestBytesMax) {
    connection.out += protocol::admin::encode_error("the request is too long");
    connection.ends = true;
  }
  flush(id);
}

void AdminSockets::flush(uint64_t id) {
  Connection& connection = connections_.at(id);
  while (!connection.out.empty()) {
    ssize_t sent = send(connection.socket.get(), connection.out.data(), connection.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) break;
    connection.out.erase(0, static_cast<size_t>(sent));
  }
  bool stuck = !connection.out.empty();
  if (stuck && errno == EAGAIN && connection.out.size() <= kUnsentBytesMax) return connection.watch.want_writable();
  if (stuck || connection.ends) connections_.erase(id);
}

}  // namespace nvshare::scheduler
