// The admin socket: JSON lines in, JSON lines out, for root and the scheduler's own user outside containers. One thread, the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "scheduler/event_loop.h"
#include "scheduler/log.h"

namespace nvshare::scheduler {

class AdminSockets {
 public:
  static constexpr size_t kConnectionsMax = 64;

  // `answer` turns a request's line into a reply's, its newline included.
  AdminSockets(EventLoop& loop, FileDescriptor listener, std::function<std::string(std::string_view)> answer);

 private:
  struct Connection {
    FileDescriptor socket;
    std::string in;
    std::string out;
    bool ends = false;  // closes once `out` is sent
    Watch watch;
  };

  void accept_all();
  void accept(FileDescriptor socket);
  void read(uint64_t id);
  void flush(uint64_t id);

  EventLoop& loop_;
  FileDescriptor listener_;
  std::function<std::string(std::string_view)> answer_;
  std::map<uint64_t, Connection> connections_;
  uint64_t next_ = 1;
  RepeatedWarnings warnings_;
  Watch accept_watch_;
};

}  // namespace nvshare::scheduler
