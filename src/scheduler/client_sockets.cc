#include "scheduler/client_sockets.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace nvshare::scheduler {
namespace {

// Reads of one client before the others have their turn.
constexpr int kPacketsPerWake = 64;
constexpr int kAcceptsPerWake = 64;
constexpr int kPacketsDrained = 1024;  // at a close; more than a socket holds

using protocol::MessageType;
using protocol::Packet;

MessageType type_of(const Packet& packet) {
  protocol::Header header;
  std::memcpy(&header, packet.bytes, sizeof header);
  return static_cast<MessageType>(header.type);
}

// Whether the second, still unread, says nothing once the first is there: both tell how something stands.
bool supersedes(const Packet& later, const Packet& earlier) {
  MessageType type = type_of(later);
  if (type != type_of(earlier)) return false;
  if (type == MessageType::kContention || type == MessageType::kUpdateLimit) return true;
  // A grant's new budget; it begins with the grant's name.
  return type == MessageType::kLockOk &&
         std::memcmp(later.bytes + sizeof(protocol::Header), earlier.bytes + sizeof(protocol::Header), sizeof(protocol::Grant)) == 0;
}

}  // namespace

ClientSockets::ClientSockets(EventLoop& loop, FileDescriptor listener, Callback after)
    : loop_(loop),
      listener_(std::move(listener)),
      after_(std::move(after)),
      accept_watch_(loop, listener_.get(), [this] { accept_all(); }) {}

void ClientSockets::send(ConnectionId id, const Packet& packet, Descriptors descriptors) {
  auto at = connections_.find(id);
  if (at == connections_.end()) return;
  Connection& connection = at->second;
  bool broken = false;
  Queued message{packet, std::move(descriptors)};
  if (connection.queue.empty() && try_send(connection, message, &broken)) return;
  if (broken) return;  // its end of file is on the way
  if (replace_queued(connection, packet)) return;
  if (connection.queue.size() >= kQueuedPacketsMax) {
    // Not now: the engine must not be called back. One post is enough; the next finds the connection gone.
    loop_.post([this, id] { drop(id, "it did not read its messages"); });
    return;
  }
  connection.queue.push_back(std::move(message));
  connection.socket_watch.want_writable();
}

void ClientSockets::close(ConnectionId id) {
  auto at = connections_.find(id);
  if (at == connections_.end()) return;
  // What the client sent and we do not want must go first: closing a socket with unread packets makes the client's next read fail, and it
  // would not see why it was refused. What is still queued for it is lost.
  std::byte bytes[protocol::kMessageBytesMax];
  for (int i = 0; i < kPacketsDrained && recv(at->second.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT) > 0; ++i) {
  }
  connections_.erase(at);
}

void ClientSockets::accept_all() {
  for (int i = 0; i < kAcceptsPerWake; ++i) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      accept(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN) warnings_.warn("accept", monotonic_ns(), "cannot accept a client: {}", std::strerror(errno));
    return;
  }
}

void ClientSockets::accept(FileDescriptor socket) {
  Result<Peer> peer = peer_of(socket.get());
  if (!peer) return warnings_.warn("peer", monotonic_ns(), "{}", peer.error().text);
  ConnectionId id = next_++;
  Connection& connection = connections_[id];
  connection.socket = std::move(socket);
  connection.process = std::move(peer->pidfd);
  engine_->connected(id, std::move(*peer));
  connection.socket_watch = Watch(
      loop_, connection.socket.get(), [this, id] { read(id); }, [this, id] { flush(id); });
  if (connection.process) {
    connection.process_watch = Watch(loop_, connection.process.get(), [this, id] { drop(id, "its process ended"); });
  }
}

void ClientSockets::read(ConnectionId id) {
  // One byte more than a message may have, so that a longer one is seen to be too long.
  std::byte bytes[protocol::kMessageBytesMax + 1];
  Descriptors descriptors;
  for (int i = 0; i < kPacketsPerWake; ++i) {
    auto at = connections_.find(id);
    if (at == connections_.end()) return;  // refused meanwhile
    ssize_t length = receive_packet(at->second.socket.get(), bytes, &descriptors, MSG_DONTWAIT);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) return;
    if (length < 0 && errno == EMSGSIZE) return drop(id, "it sent more descriptors than a message may carry");
    if (length <= 0) return drop(id, "it closed its connection");
    engine_->received(id, {bytes, static_cast<size_t>(length)}, monotonic_ns(), std::move(descriptors));
    after_();
  }
}

void ClientSockets::flush(ConnectionId id) {
  auto at = connections_.find(id);
  if (at == connections_.end()) return;
  Connection& connection = at->second;
  bool broken = false;
  while (!connection.queue.empty() && try_send(connection, connection.queue.front(), &broken)) connection.queue.pop_front();
  if (broken) connection.queue.clear();
  if (!connection.queue.empty()) connection.socket_watch.want_writable();
}

void ClientSockets::drop(ConnectionId id, const char* why) {
  if (connections_.erase(id) == 0) return;
  engine_->disconnected(id, why, monotonic_ns());
  after_();
}

bool ClientSockets::try_send(const Connection& connection, const Queued& message, bool* broken) {
  ssize_t sent = -1;
  do {
    sent = send_packet(connection.socket.get(), message.packet.span(), message.descriptors, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  *broken = sent < 0 && errno != EAGAIN;
  return sent >= 0;
}

bool ClientSockets::replace_queued(Connection& connection, const Packet& packet) {
  for (Queued& queued : connection.queue) {
    if (!supersedes(packet, queued.packet)) continue;
    queued.packet = packet;
    return true;
  }
  return false;
}

}  // namespace nvshare::scheduler
