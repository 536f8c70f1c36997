// The clients' sockets: accepts, reads whole packets, notices deaths, and never waits for a slow reader. The Transport of the engine.
// One thread, the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "base/fd.h"
#include "protocol/codec.h"
#include "scheduler/engine.h"
#include "scheduler/event_loop.h"

namespace nvshare::scheduler {

class ClientSockets : public Transport {
 public:
  // What a stopped client may leave unread, beyond what its socket holds. Past it the connection is closed; the client comes back.
  static constexpr size_t kQueuedPacketsMax = 256;

  // `after` is called whenever the engine was.
  ClientSockets(EventLoop& loop, FileDescriptor listener, Callback after);

  // Before the loop runs. The engine outlives neither the loop nor this.
  void serve(Engine& engine) { engine_ = &engine; }

  void send(ConnectionId connection, const protocol::Packet& packet, Descriptors descriptors) override;
  void close(ConnectionId connection) override;

 private:
  struct Queued {
    protocol::Packet packet;
    Descriptors descriptors;
  };
  struct Connection {
    FileDescriptor socket;
    FileDescriptor process;  // pidfd
    std::deque<Queued> queue;
    Watch socket_watch;  // after the descriptors, so that they go first
    Watch process_watch;
  };

  void accept_all();
  void accept(FileDescriptor socket);
  void read(ConnectionId connection);
  void flush(ConnectionId connection);
  void drop(ConnectionId connection, const char* why);
  // Sends at once if the socket takes it. False: it does not, now or (`broken`) ever.
  static bool try_send(const Connection& connection, const Queued& message, bool* broken);
  static bool replace_queued(Connection& connection, const protocol::Packet& packet);

  EventLoop& loop_;
  FileDescriptor listener_;
  Callback after_;
  Engine* engine_ = nullptr;
  std::map<ConnectionId, Connection> connections_;
  ConnectionId next_ = 1;
  RepeatedWarnings warnings_;
  Watch accept_watch_;
};

}  // namespace nvshare::scheduler
