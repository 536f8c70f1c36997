// Closes what clients have sent, and their sockets, in which more of that may lie unread, away from the loop's thread. close() waits for a
// TCP connection that lingers (SO_LINGER) as long as its sender said, and for whoever serves a file (FUSE): a client could hold up
// everybody else by one descriptor. Waits for sockets are cut short by a signal; for others there is a thread for each that makes others
// wait.
#pragma once

#include <cstdint>
#include <memory>

#include "base/descriptors.h"
#include "base/fd.h"

namespace nvshare::scheduler {

class ClosingThreads final : public DescriptorCloser {
 public:
  static constexpr int kThreadsMax = 16;

  ClosingThreads();
  // Waits for those that can be closed. A thread that still waits then goes on, and ends with the process.
  ~ClosingThreads() override;

  void close_later(FileDescriptor descriptor, uint64_t whose) override;
  // Its peer sees the end of the connection at once, and can send nothing more; what it has sent goes before the close, which it would
  // take for an error else. Where there are no descriptors among that, it is closed at once: a thread costs more than most connections.
  void close_socket_later(FileDescriptor socket, uint64_t whose);

  // How many are not closed yet.
  int64_t waiting(uint64_t whose) const;
  int64_t waiting() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // a thread's, too
};

}  // namespace nvshare::scheduler
