#include "scheduler/sockets/admin_sockets.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <set>

#include "protocol/admin.h"
#include "scheduler/log.h"
#include "scheduler/tenants/admin_peers.h"

namespace nvshare::scheduler {
namespace {

constexpr size_t kReadBytes = 4096;
constexpr size_t kUnsentBytesMax = 16 << 20;
constexpr int64_t kAcceptAgain_ns = 100'000'000;
constexpr int kSendBuffer = 1 << 20;  // so much is copied in one go, which takes 0.2 ms

}  // namespace

AdminSockets::AdminSockets(EventLoop& loop, FileDescriptor listener, Answer answer, Bounds bounds)
    : loop_(loop),
      listener_(std::move(listener)),
      answer_(std::move(answer)),
      bounds_(bounds),
      patience_timer_(loop, [this] { end_stuck(); }),
      accept_watch_(loop, listener_.get(), [this] { accept_all(); }),
      accept_timer_(loop, [this] { accept_watch_.resume(); }) {}

void AdminSockets::accept_all() {
  while (true) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      accept(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return;
    warnings_.warn("accept", monotonic_ns(), "cannot accept an admin connection: {}", std::strerror(errno));
    // Out of descriptors or memory: it stays in the listener's queue, and asking at once would ask for ever.
    accept_watch_.pause();
    return accept_timer_.arm(monotonic_ns() + kAcceptAgain_ns);
  }
}

void AdminSockets::accept(FileDescriptor socket) {
  Result<void> allowed = peers_.may_administer(socket.get());
  if (allowed && connections_.size() >= kConnectionsMax) allowed = Result<void>(error_format("too many admin connections"));
  uint64_t id = next_++;
  Connection& connection = connections_[id];
  connection.socket = std::move(socket);
  // A long answer waits for its reader less often. The kernel may allow less.
  setsockopt(connection.socket.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
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
    if (std::optional<std::string> text = answer_(request, [this, id](Text later) { answered(id, std::move(later)); })) {
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

void AdminSockets::answered(uint64_t id, Text text) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  at->second.later = std::move(text);
  flush(id);
}

namespace {

bool send_rest(int socket, const std::string& text, size_t& done) {
  while (done < text.size()) {
    const ssize_t sent = send(socket, text.data() + done, text.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    done += static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

bool AdminSockets::send_answers(Connection& connection) {
  if (!send_rest(connection.socket.get(), connection.out, connection.sent)) return false;
  connection.out.clear();
  connection.sent = 0;
  return !connection.later || send_rest(connection.socket.get(), *connection.later, connection.later_sent);
}

void AdminSockets::flush(uint64_t id) {
  Connection& connection = connections_.at(id);
  const size_t unsent = connection.out.size() - connection.sent, later_sent = connection.later_sent;
  const bool all = send_answers(connection);
  const bool waits = !all && errno == EAGAIN;
  const size_t left = connection.out.size() - connection.sent;
  // What comes later is one answer, however long: requests behind it wait until it has been sent.
  if (waits && left <= kUnsentBytesMax) return wait_for_reader(id, left < unsent || connection.later_sent > later_sent);
  if (!all || connection.ends) {
    connections_.erase(id);
    return;
  }
  connection.stuck = false;
  if (!connection.later) return;
  connection.later.reset();
  connection.later_sent = 0;
  connection.awaits = false;
  connection.watch.resume();
  serve(id);
}

void AdminSockets::wait_for_reader(uint64_t id, bool moved) {
  Connection& connection = connections_.at(id);
  if (!std::exchange(connection.stuck, true) || moved) connection.moved_at = monotonic_ns();
  connection.watch.want_writable();
  if (!std::exchange(looks_, true)) patience_timer_.arm(connection.moved_at + bounds_.patience_ns);
  end_slowest(id);
}

size_t AdminSockets::held_bytes() const {
  std::set<Text> texts;  // several readers may have the same
  for (const auto& [id, connection] : connections_) {
    if (connection.later) texts.insert(connection.later);
  }
  size_t bytes = 0;
  for (const Text& text : texts) bytes += text->size();
  return bytes;
}

void AdminSockets::end_slowest(uint64_t but) {
  while (held_bytes() > bounds_.held_bytes_max) {
    auto slowest = connections_.end();
    for (auto at = connections_.begin(); at != connections_.end(); ++at) {
      const bool holds = at->first != but && at->second.stuck && at->second.later;
      if (holds && (slowest == connections_.end() || at->second.moved_at < slowest->second.moved_at)) slowest = at;
    }
    if (slowest == connections_.end()) return;
    warnings_.warn("slow", monotonic_ns(), "ended an admin connection: answers that their readers have not taken are longer than {} MiB",
                   bounds_.held_bytes_max >> 20);
    connections_.erase(slowest);
  }
}

void AdminSockets::end_stuck() {
  const int64_t before = monotonic_ns() - bounds_.patience_ns;
  looks_ = false;
  int64_t next = INT64_MAX;
  for (auto at = connections_.begin(); at != connections_.end();) {
    const bool over = at->second.stuck && at->second.moved_at <= before;
    if (at->second.stuck && !over) next = std::min(next, at->second.moved_at);
    if (over)
      warnings_.warn("stuck", monotonic_ns(), "ended an admin connection: for {} s nobody has read from it",
                     bounds_.patience_ns / 1'000'000'000);
    at = over ? connections_.erase(at) : std::next(at);
  }
  if (next == INT64_MAX) return;
  looks_ = true;
  patience_timer_.arm(next + bounds_.patience_ns);
}

}  // namespace nvshare::scheduler
