#include "scheduler/sockets/client_sockets.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

namespace nvshare::scheduler {
namespace {

// Reads of one client before the others have their turn.
constexpr int kPacketsPerWake = 16;
constexpr int kAcceptsPerWake = 16;
constexpr int64_t kRetryNs = 50'000'000;
constexpr int64_t kAcceptAgainNs = 100'000'000;
constexpr policy::Duration kCloseAgainNs = 20'000'000;  // until more is read of whose descriptors are not closed yet
constexpr int64_t kMillisecond = 1'000'000;
// What a message is charged at most: the machine may have been slow, not the message.
constexpr policy::Duration kHandledMaxNs = 50 * kMillisecond;
// Of the open files a quarter is left for segments, locks and what is queued for clients.
constexpr int64_t kDescriptorsAtLeast = 32;
constexpr int64_t kFewPrograms = 1000;
constexpr int64_t kManyGpus = 8;
constexpr int64_t kQueuedPart = 8;

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

ConnectionBounds::Limits with_room(ConnectionBounds::Limits limits, int64_t open_files) {
  limits.descriptors = std::max(open_files - open_files / 4 - bounds::kDescriptorsKept, kDescriptorsAtLeast);
  return limits;
}

Packet refusal(std::string_view why) {
  protocol::Refused message{};
  std::copy_n(why.begin(), std::min(why.size(), sizeof message.reason - 1), message.reason);
  return protocol::encode(message, protocol::kVersionMin);
}

uint64_t number_of(const std::string& account) { return std::hash<std::string>{}(account); }

}  // namespace

ClientSockets::ClientSockets(EventLoop& loop, FileDescriptor listener, Callback after, const ConnectionBounds::Limits& limits,
                             int64_t open_files, policy::Duration register_within)
    : loop_(loop),
      listener_(std::move(listener)),
      after_(std::move(after)),
      processes_(loop, [this](ConnectionId id) { drop(id, "its process ended"); }),
      cgroup_reader_(CgroupReader::here()),
      bounds_(with_room(limits, open_files)),
      register_within_(register_within),
      queued_descriptors_max_(std::max(open_files / kQueuedPart, bounds::kQueuedDescriptorsPerConnection)),
      accept_watch_(loop, listener_.get(), [this] { accept_all(); }),
      accept_timer_(loop, [this] { accept_watch_.resume(); }),
      silence_timer_(loop, [this] { drop_silent(); }),
      resume_timer_(loop, [this] { resume_due(); }),
      retry_timer_(loop, [this] { retry_held_up(); }) {
  // Each process takes one descriptor, and one for each connection, of which it has one for each of its GPUs.
  const int64_t descriptors = with_room(limits, open_files).descriptors;
  spdlog::log(descriptors / 2 < kFewPrograms ? spdlog::level::warn : spdlog::level::info,
              "room for {} programs on a GPU each, or {} on {} GPUs each, as the limit of open files is {} (LimitNOFILE, ulimit -Hn)",
              descriptors / 2, descriptors / (kManyGpus + 1), kManyGpus, open_files);
}

ClientSockets::~ClientSockets() {
  for (auto& [id, connection] : connections_) end(connection);
  accept_watch_ = {};
  closing_.close_socket_later(std::move(listener_), 0);
}

void ClientSockets::listen_at(FileDescriptor listener) {
  accept_all();
  accept_watch_ = {};
  closing_.close_socket_later(std::exchange(listener_, std::move(listener)), 0);
  accept_watch_ = Watch(loop_, listener_.get(), [this] { accept_all(); });
}

void ClientSockets::send(ConnectionId id, const Packet& packet, Descriptors descriptors) {
  auto at = connections_.find(id);
  if (at == connections_.end()) return;
  Connection& connection = at->second;
  Queued message{packet, std::move(descriptors)};
  if (message.descriptors.count() > 0 && !connection.held_up.empty()) return hold_up(id, connection, std::move(message));
  const Sent sent = connection.queue.empty() ? try_send(connection.socket.get(), message) : Sent::kLater;
  if (sent == Sent::kYes || sent == Sent::kNever) return;  // never: its end of file is on the way
  if (sent == Sent::kTooManyInFlight) return hold_up(id, connection, std::move(message));
  if (replace_queued(connection, packet)) return;
  if (!may_queue(connection, message)) {
    // Not now: the engine must not be called back. One post is enough; the next finds the connection gone.
    loop_.post([this, id] { drop(id, "it did not read its messages"); });
    return;
  }
  connection.queued_descriptors += message.descriptors.count();
  queued_descriptors_ += message.descriptors.count();
  connection.queue.push_back(std::move(message));
  connection.socket_watch.want_writable();
}

bool ClientSockets::may_queue(const Connection& connection, const Queued& message) const {
  const int64_t more = message.descriptors.count();
  return connection.queue.size() < kQueuedPacketsMax &&
         (more == 0 || (connection.queued_descriptors + more <= bounds::kQueuedDescriptorsPerConnection &&
                        queued_descriptors_ + more <= queued_descriptors_max_));
}

void ClientSockets::forget(std::map<ConnectionId, Connection>::iterator at) {
  bounds_.left(at->first);
  processes_.leave(at->first);
  queued_descriptors_ -= at->second.queued_descriptors;
  end(at->second);
  connections_.erase(at);
}

void ClientSockets::end(Connection& connection) {
  connection.socket_watch = {};  // while the number is the socket's
  closing_.close_socket_later(std::move(connection.socket), connection.whose);
}

void ClientSockets::close(ConnectionId id) {
  spdlog::debug("connection {} is closed by the engine", id);
  auto at = connections_.find(id);
  if (at != connections_.end()) forget(at);  // what is still queued for it is lost
}

void ClientSockets::accept_all() {
  const auto later = [this] {
    accept_watch_.pause();
    accept_timer_.arm(monotonic_ns() + kAcceptAgainNs);
  };
  if (closing_.waiting() > queued_descriptors_max_) return later();
  for (int i = 0; i < kAcceptsPerWake; ++i) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      accept(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return;
    warnings_.warn("accept", monotonic_ns(), "cannot accept a client: {}", std::strerror(errno));
    // Out of descriptors or memory; the client stays in the listener's queue, and asking at once would ask for ever.
    return later();
  }
}

void ClientSockets::accept(FileDescriptor socket) {
  const policy::Instant now = monotonic_ns();
  const auto give_up = [&](const Error& why, uint64_t whose) {
    warnings_.warn("peer", now, "{}", why.text);
    closing_.close_socket_later(std::move(socket), whose);
  };
  const Result<PeerNumber> number = number_of_peer(socket.get());
  if (!number) return give_up(number.error(), 0);
  if (!bounds_.may_connect(number->pid, now)) {
    return turn_away(std::move(socket), *number, error_format("process %d connects too often", number->pid));
  }
  Result<Peer> peer = peer_of(socket.get());
  if (!peer) return give_up(peer.error(), static_cast<uint64_t>(number->pid));
  processes_.end_if_dead(peer->pid);
  if (peer->pid == 0) {
    warnings_.warn(
        "unseen", now,
        "a program of user {} is in a PID namespace that this scheduler does not see: it counts as a tenant of its own, whatever "
        "pod or container it is in; run the scheduler in the host's PID namespace (hostPID, --pid=host)",
        peer->uid);
  }
  Accountable whose = accountable_for(cgroup_reader_, cgroups_of(peer->pid), peer->uid, peer->pid, peer->start_time);
  if (whose.tenant.empty() && whose.user.empty()) {  // root's, in no unit: possibly a container whose cgroups nobody knows
    peer->pid_namespace = pid_namespace_below(peer->pid);
    if (peer->pid_namespace != 0) whose.tenant = "PID namespace " + std::to_string(peer->pid_namespace);
  }
  ConnectionId id = next_++;
  spdlog::debug("connection {} of pid {}", id, peer->pid);
  if (auto ok = bounds_.admit(id, whose, now); !ok) return turn_away(std::move(socket), *number, ok.error());
  Connection& connection = connections_[id];
  connection.socket = std::move(socket);
  processes_.join(id, peer->pid, std::move(peer->pidfd));
  peer->account = whose.tenant.empty() ? whose.user : whose.tenant;
  connection.whose = number_of(peer->account);
  engine_->connected(id, std::move(*peer));
  connection.socket_watch = Watch(
      loop_, connection.socket.get(), [this, id] { read(id); }, [this, id] { flush(id); });
  if (silent_.empty()) silence_timer_.arm(now + register_within_);
  silent_.emplace_back(now + register_within_, id);
  bounds_.charge(id, cost_of(std::min(monotonic_ns() - now, kHandledMaxNs)));
}

void ClientSockets::turn_away(FileDescriptor socket, const PeerNumber& peer, const Error& why) {
  warnings_.warn("turned away", monotonic_ns(), "refused pid {} (user {}): {}", peer.pid, peer.uid, why.text);
  static_cast<void>(try_send(socket.get(), {refusal(why.text), {}}));
  closing_.close_socket_later(std::move(socket), static_cast<uint64_t>(peer.pid));
}

void ClientSockets::drop_silent() {
  const policy::Instant now = monotonic_ns();
  while (!silent_.empty() && silent_.front().first <= now) {
    const ConnectionId id = silent_.front().second;
    silent_.pop_front();
    const auto at = connections_.find(id);
    if (at == connections_.end() || at->second.spoke) continue;
    read(id);  // it may have been this side that was late
    if (const auto still = connections_.find(id); still != connections_.end() && !still->second.spoke) {
      send(id, refusal("it did not register in time"), {});
      drop(id, "it did not register in time");
    }
  }
  if (!silent_.empty()) silence_timer_.arm(silent_.front().first);
}

void ClientSockets::pause(ConnectionId id, policy::Duration time) {
  connections_.at(id).socket_watch.pause();
  const auto at = unread_until_.emplace(monotonic_ns() + time, id);
  if (at == unread_until_.begin()) resume_timer_.arm(at->first);
}

void ClientSockets::resume_due() {
  const policy::Instant now = monotonic_ns();
  while (!unread_until_.empty() && unread_until_.begin()->first <= now) {
    if (const auto at = connections_.find(unread_until_.begin()->second); at != connections_.end()) at->second.socket_watch.resume();
    unread_until_.erase(unread_until_.begin());
  }
  if (!unread_until_.empty()) resume_timer_.arm(unread_until_.begin()->first);
}

void ClientSockets::read(ConnectionId id) {
  // One byte more than a message may have, so that a longer one is seen to be too long.
  std::byte bytes[protocol::kMessageBytesMax + 1];
  for (int i = 0; i < kPacketsPerWake; ++i) {
    auto at = connections_.find(id);
    if (at == connections_.end()) return;  // refused meanwhile
    const policy::Instant now = monotonic_ns();
    if (const policy::Duration wait = bounds_.wait(id, now); wait > 0) return pause(id, wait);
    if (closing_.waiting(at->second.whose) >= bounds::kUnclosedDescriptors) return pause(id, kCloseAgainNs);
    Descriptors descriptors;
    descriptors.leave_to(&closing_, at->second.whose);
    ssize_t length = receive_packet(at->second.socket.get(), bytes, &descriptors, MSG_DONTWAIT);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) return;
    if (length < 0 && errno == EMSGSIZE) return drop(id, "it sent more descriptors than a message may carry");
    if (length <= 0) return drop(id, "it closed its connection");
    at->second.spoke = true;
    engine_->received(id, {bytes, static_cast<size_t>(length)}, now, std::move(descriptors));
    after_();
    bounds_.charge(id, cost_of(std::min(monotonic_ns() - now, kHandledMaxNs)));
  }
}

void ClientSockets::flush(ConnectionId id) {
  auto at = connections_.find(id);
  if (at == connections_.end()) return;
  Connection& connection = at->second;
  while (!connection.queue.empty()) {
    const Sent sent = try_send(connection.socket.get(), connection.queue.front());
    if (sent == Sent::kLater) break;
    if (sent == Sent::kNever) {
      while (!connection.queue.empty()) forget_front(connection, connection.queue);
      break;
    }
    if (sent == Sent::kTooManyInFlight) {
      Queued message = std::move(connection.queue.front());
      const int count = message.descriptors.count();
      connection.queue.pop_front();
      connection.queued_descriptors -= count;
      queued_descriptors_ -= count;
      hold_up(id, connection, std::move(message));
      continue;
    }
    forget_front(connection, connection.queue);
  }
  if (!connection.queue.empty()) connection.socket_watch.want_writable();
}

void ClientSockets::drop(ConnectionId id, const char* why) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  spdlog::debug("connection {} ends: {}", id, why);
  forget(at);
  engine_->disconnected(id, why, monotonic_ns());
  after_();
}

void ClientSockets::hold_up(ConnectionId id, Connection& connection, Queued message) {
  if (connection.held_up.size() >= kQueuedPacketsMax || !may_queue(connection, message)) {
    loop_.post([this, id] { drop(id, "its messages with descriptors could not be passed on"); });
    return;
  }
  if (connection.held_up.empty()) connection.held_up_since = monotonic_ns();
  connection.queued_descriptors += message.descriptors.count();
  queued_descriptors_ += message.descriptors.count();
  connection.held_up.push_back(std::move(message));
  warnings_.warn(
      "in flight", monotonic_ns(),
      "the kernel takes no more descriptors on their way to programs ({}), because some program of this user has many on theirs; "
      "trying again",
      std::strerror(ETOOMANYREFS));
  retry_timer_.arm(monotonic_ns() + kRetryNs);
}

void ClientSockets::retry_held_up() {
  std::vector<std::pair<ConnectionId, Packet>> not_delivered;
  bool again = false;
  for (auto& [id, connection] : connections_) {
    while (!connection.held_up.empty()) {
      const Sent sent = try_send(connection.socket.get(), connection.held_up.front());
      if (sent == Sent::kLater) break;
      if (sent == Sent::kTooManyInFlight) {
        if (monotonic_ns() - connection.held_up_since < kInFlightPatienceNs) break;
        not_delivered.emplace_back(id, connection.held_up.front().packet);
      }
      forget_front(connection, connection.held_up);
    }
    again = again || !connection.held_up.empty();
  }
  if (again) retry_timer_.arm(monotonic_ns() + kRetryNs);
  for (const auto& [id, packet] : not_delivered) engine_->not_delivered(id, packet, monotonic_ns());
  if (!not_delivered.empty()) after_();
}

void ClientSockets::forget_front(Connection& connection, std::deque<Queued>& queue) {
  connection.queued_descriptors -= queue.front().descriptors.count();
  queued_descriptors_ -= queue.front().descriptors.count();
  queue.pop_front();
}

ClientSockets::Sent ClientSockets::try_send(int socket, const Queued& message) {
  ssize_t sent = -1;
  do {
    sent = send_packet(socket, message.packet.span(), message.descriptors, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Sent::kYes;
  if (errno == EAGAIN) return Sent::kLater;
  return errno == ETOOMANYREFS ? Sent::kTooManyInFlight : Sent::kNever;
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
