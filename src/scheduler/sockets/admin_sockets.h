// The admin socket: JSON lines in, JSON lines out, for root and the scheduler's own user outside containers. One thread, the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "loop/event_loop.h"
#include "scheduler/log.h"
#include "scheduler/tenants/admin_peers.h"

namespace nvshare::scheduler {

class AdminSockets {
 public:
  static constexpr size_t kConnectionsMax = 64;

  // What readers may cost that read slowly or not at all.
  struct Bounds {
    int64_t patience_ns = 30'000'000'000;       // with one that takes nothing of its answer; then its connection ends
    size_t held_bytes_max = size_t{128} << 20;  // by answers that come later and are not sent yet: past it the slowest connections end
  };
  using Text = std::shared_ptr<const std::string>;
  using Later = std::function<void(Text)>;  // on the loop's thread, after Answer has returned; once
  // Turns a request's line into a reply's, its newline included; nullopt: that comes later, and further requests of the connection wait.
  using Answer = std::function<std::optional<std::string>(std::string_view request, Later later)>;

  AdminSockets(EventLoop& loop, FileDescriptor listener, Answer answer, Bounds bounds);
  AdminSockets(EventLoop& loop, FileDescriptor listener, Answer answer) : AdminSockets(loop, std::move(listener), std::move(answer), {}) {}

 private:
  struct Connection {
    FileDescriptor socket;
    std::string in;
    std::string out;
    size_t sent = 0;      // of `out`
    bool awaits = false;  // an answer that comes later, or has not been sent yet
    // That answer. With thousands of clients it is long, and the same for several that ask.
    Text later;
    size_t later_sent = 0;
    bool stuck = false;    // until the reader takes more
    int64_t moved_at = 0;  // while it is stuck: when that began, or when the reader last took some
    bool ends = false;     // closes once `out` is sent
    Watch watch;
  };

  void accept_all();
  void accept(FileDescriptor socket);
  void read(uint64_t id);
  void serve(uint64_t id);  // requests that have come
  void answered(uint64_t id, Text text);
  void flush(uint64_t id);
  bool send_answers(Connection& connection);  // as much as the socket takes; false: not all, and errno says why
  void wait_for_reader(uint64_t id, bool moved);
  void end_slowest(uint64_t but);  // of the readers, until the rest holds no more than may be
  void end_stuck();                // for longer than there is patience
  size_t held_bytes() const;

  EventLoop& loop_;
  FileDescriptor listener_;
  Answer answer_;
  AdminPeers peers_;
  const Bounds bounds_;
  std::map<uint64_t, Connection> connections_;
  uint64_t next_ = 1;
  RepeatedWarnings warnings_;
  bool looks_ = false;  // patience_timer_ is armed
  Timer patience_timer_;
  Watch accept_watch_;
  Timer accept_timer_;
};

}  // namespace nvshare::scheduler
