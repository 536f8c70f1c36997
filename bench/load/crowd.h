// Thousands of processes for one program to play: each is a task of its own to the kernel (a number, a death, SO_PEERCRED), but shares
// memory and descriptors with the program, so that the program speaks for all of them from one loop. Nothing here waits for a process to
// have had a processor, which takes a while where others want it too: whoever waits measures that, not the scheduler. Not thread-safe.
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "base/fd.h"

namespace nvshare::bench {

struct Member {
  size_t place = 0;                     // in the crowd
  std::vector<FileDescriptor> sockets;  // to be connected by that process; none: there is no process
};

class Crowd {
 public:
  explicit Crowd(const std::string& socket_path);
  ~Crowd();
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // A new process that connects so many times by and by, and then sleeps until it is killed. Its member's sockets are not to be closed
  // before has_answered().
  Member enter(size_t connections);
  // Readable when some have connected, or could not, since it was last emptied.
  int news() const { return news_.get(); }
  bool has_answered(size_t place) const { return places_[place].connected.load(std::memory_order_acquire) != 0; }
  bool has_connected(size_t place) const { return places_[place].connected.load(std::memory_order_acquire) > 0; }
  void kill(size_t place);
  void kill_all();
  void wait_for_all();  // those that were killed: the kernel forgets what others have read of them, which takes it a while

  // What a process does, and where; of use here alone.
  struct Place {
    void* stack = nullptr;
    pid_t pid = -1;  // -1: nobody
    std::vector<int> sockets;
    int news = -1;
    sockaddr_un address{};
    std::atomic<int> connected{0};  // 1: yes, -1: no
  };

 private:
  void forget_dead();

  sockaddr_un address_{};
  const FileDescriptor news_;
  std::deque<Place> places_;  // which stay where they are: processes know them
  std::vector<size_t> free_, dying_;
};

}  // namespace nvshare::bench
