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

AdminSockets::AdminSockets(EventLoop& loop, FileDescriptor listener, Answer answer)
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
  serve(id);
}

void AdminSockets::serve(uint64_t id) {
  Connection& connection = connections_.at(id);
  size_t begin = 0;
  for (size_t end = connection.in.find('\n'); end != std::string::npos; end = connection.in.find('\n', begin)) {
    const std::string_view request = std::string_view(connection.in).substr(begin, end - begin);
    begin = end + 1;
    if (std::optional<std::string> text = answer_(request, [this, id](std::string_view later) { answered(id, later); })) {
      connection.out += *text;
      continue;
    }
    connection.awaits = true;
    connection.watch.pause();
    break;
  }
  connection.in.erase(0, begin);
  if (!connection.awaits && connection.in.size() > protocol::admin::kRequestBytesMax) {
    connection.out += protocol::admin::encode_error("the request is too long");
    connection.ends = true;
  }
  flush(id);
}

void AdminSockets::answered(uint64_t id, std::string_view text) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  at->second.out += text;
  at->second.awaits = false;
  at->second.watch.resume();
  serve(id);
}

void AdminSockets::flush(uint64_t id) {
  Connection& connection = connections_.at(id);
  while (connection.sent < connection.out.size()) {
    ssize_t sent = send(connection.socket.get(), connection.out.data() + connection.sent, connection.out.size() - connection.sent,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) break;
    connection.sent += static_cast<size_t>(sent);
  }
  const size_t unsent = connection.out.size() - connection.sent;
  const bool stuck = unsent > 0;
  if (!stuck) {
    connection.out.clear();
    connection.sent = 0;
  }
  if (stuck && errno == EAGAIN && unsent <= kUnsentBytesMax) return connection.watch.want_writable();
  if (stuck || connection.ends) connections_.erase(id);
}

}  // namespace nvshare::scheduler
