// The clients' sockets: accepts, reads whole packets, notices deaths, and never waits for a slow reader. The Transport of the engine.
// One thread, the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "base/fd.h"
#include "loop/event_loop.h"
#include "protocol/codec.h"
#include "scheduler/engine/engine.h"
#include "scheduler/sockets/closing_threads.h"
#include "scheduler/sockets/connection_bounds.h"
#include "scheduler/sockets/peer_processes.h"

namespace nvshare::scheduler {

class ClientSockets : public Transport {
 public:
  // What a stopped client may leave unread, beyond what its socket holds. Past it the connection is closed; the client comes back.
  static constexpr size_t kQueuedPacketsMax = 256;
  // The kernel takes no more descriptors while many of other programs of the same user are on their way (ETOOMANYREFS). Messages with some
  // are tried again for so long; then the engine hears that they were not delivered.
  static constexpr int64_t kInFlightPatienceNs = 2'000'000'000;

  // `after` is called whenever the engine was. `open_files`: that the process may have (RLIMIT_NOFILE).
  ClientSockets(EventLoop& loop, FileDescriptor listener, Callback after, const ConnectionBounds::Limits& limits, int64_t open_files,
                policy::Duration register_within);
  ~ClientSockets() override;

  // Before the loop runs. The engine outlives neither the loop nor this.
  void serve(Engine& engine) { engine_ = &engine; }

  // From now on; who waits at the former one is taken first.
  void listen_at(FileDescriptor listener);

  void send(ConnectionId connection, const protocol::Packet& packet, Descriptors descriptors) override;
  void close(ConnectionId connection) override;

  const ConnectionBounds& bounds() const { return bounds_; }

 private:
  struct Queued {
    protocol::Packet packet;
    Descriptors descriptors;
  };
  struct Connection {
    FileDescriptor socket;
    uint64_t whose = 0;  // its account's, for the closing threads
    std::deque<Queued> queue;
    int64_t queued_descriptors = 0;
    bool spoke = false;          // and was not refused for it: it has registered
    std::deque<Queued> held_up;  // by others' descriptors on their way; what carries none goes past them
    int64_t held_up_since = 0;
    Watch socket_watch;  // after the descriptor, so that it goes first
  };

  void accept_all();
  void accept(FileDescriptor socket);
  void turn_away(FileDescriptor socket, const PeerNumber& peer, const Error& why);
  void drop_silent();
  void read(ConnectionId connection);
  void pause(ConnectionId connection, policy::Duration time);
  void resume_due();
  void forget(std::map<ConnectionId, Connection>::iterator connection);
  void end(Connection& connection);
  void flush(ConnectionId connection);
  void drop(ConnectionId connection, const char* why);
  enum class Sent { kYes, kLater, kTooManyInFlight, kNever };
  static Sent try_send(int socket, const Queued& message);
  void hold_up(ConnectionId id, Connection& connection, Queued message);
  void retry_held_up();
  void forget_front(Connection& connection, std::deque<Queued>& queue);
  static bool replace_queued(Connection& connection, const protocol::Packet& packet);
  bool may_queue(const Connection& connection, const Queued& message) const;

  EventLoop& loop_;
  FileDescriptor listener_;
  Callback after_;
  Engine* engine_ = nullptr;
  ClosingThreads closing_;  // outlives all that clients have sent
  std::map<ConnectionId, Connection> connections_;
  PeerProcesses processes_;
  ConnectionId next_ = 1;
  const CgroupReader cgroup_reader_;
  ConnectionBounds bounds_;
  const policy::Duration register_within_;
  const int64_t queued_descriptors_max_;
  int64_t queued_descriptors_ = 0;
  std::deque<std::pair<policy::Instant, ConnectionId>> silent_;  // by when each has to register
  std::multimap<policy::Instant, ConnectionId> unread_until_;    // until when it is not read
  RepeatedWarnings warnings_;
  Watch accept_watch_;
  Timer accept_timer_;
  Timer silence_timer_;
  Timer resume_timer_;
  Timer retry_timer_;
};

}  // namespace nvshare::scheduler
