// The admin socket: JSON lines in, JSON lines out, for root and the scheduler's own user outside containers. One thread, the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "scheduler/event_loop.h"
#include "scheduler/log.h"

namespace nvshare::scheduler {

class AdminSockets {
 public:
  static constexpr size_t kConnectionsMax = 64;

  using Later = std::function<void(std::string_view)>;  // on the loop's thread, after Answer has returned; once
  // Turns a request's line into a reply's, its newline included; nullopt: that comes later, and further requests of the connection wait.
  using Answer = std::function<std::optional<std::string>(std::string_view request, Later later)>;

  AdminSockets(EventLoop& loop, FileDescriptor listener, Answer answer);

 private:
  struct Connection {
    FileDescriptor socket;
    std::string in;
    std::string out;
    size_t sent = 0;      // of `out`
    bool awaits = false;  // an answer that comes later
    bool ends = false;    // closes once `out` is sent
    Watch watch;
  };

  void accept_all();
  void accept(FileDescriptor socket);
  void read(uint64_t id);
  void serve(uint64_t id);  // requests that have come
  void answered(uint64_t id, std::string_view text);
  void flush(uint64_t id);

  EventLoop& loop_;
  FileDescriptor listener_;
  Answer answer_;
  std::map<uint64_t, Connection> connections_;
  uint64_t next_ = 1;
  RepeatedWarnings warnings_;
  Watch accept_watch_;
};

}  // namespace nvshare::scheduler
