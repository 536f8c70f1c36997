// Sockets of ours that stay open in somebody else's process. The program may close all descriptors that it does not know (closefrom(), or a
// number closed twice) and then has files of its own under the same numbers: nothing of ours is written there, nothing read, and they are
// not closed. So a socket is known by its inode, which it shares with no other file, and is looked at before each use.
//
// Thread-safe, but for the end of an object. No call in here is a point where a thread is cancelled.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fd.h"

namespace nvshare::interposer {

class OwnSocket {
 public:
  OwnSocket() = default;
  ~OwnSocket() { reset(); }
  OwnSocket(const OwnSocket&) = delete;
  OwnSocket& operator=(const OwnSocket&) = delete;

  // Takes another one instead, or none. What was there is closed if it is still ours.
  void reset(FileDescriptor socket = FileDescriptor());
  // -1: there is none, or the program has closed it.
  int get() const;
  explicit operator bool() const { return fd_.load(std::memory_order_acquire) >= 0; }  // there was one when that was last changed

 private:
  std::atomic<int> fd_{-1};
  std::atomic<uint64_t> device_{0};
  std::atomic<uint64_t> inode_{0};
};

// What a thread polls to be woken by others.
class WakeSocket {
 public:
  bool make();  // it is there, made anew if the program has closed it; false: errno says why not
  void reset() { socket_.reset(); }
  int get() const { return socket_.get(); }
  void wake() const;
  void settle() const;  // takes in that it was woken

 private:
  OwnSocket socket_;
};

}  // namespace nvshare::interposer
