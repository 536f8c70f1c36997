// Packets with open descriptors on a Unix socket (SCM_RIGHTS). The sender keeps its own copies; the receiver gets new ones, closed on exec.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <utility>

#include "base/fd.h"

namespace nvshare {

// The descriptors of one packet, owned.
class Descriptors {
 public:
  static constexpr int kMax = 16;

  int count() const { return count_; }
  int get(int index) const { return fds_[index].get(); }
  FileDescriptor take(int index) { return std::move(fds_[index]); }  // leaves a gap: for who takes them one by one
  // False: it has kMax already; the descriptor is closed.
  bool add(FileDescriptor descriptor) {
    if (count_ == kMax) return false;
    fds_[count_++] = std::move(descriptor);
    return true;
  }
  void clear() {
    while (count_ > 0) fds_[--count_].reset();
  }

 private:
  FileDescriptor fds_[kMax];
  int count_ = 0;
};

// As send() and recv(), with the descriptors; `flags` as theirs. A packet that came with more than Descriptors::kMax is an error
// (EMSGSIZE), and none of them is kept.
ssize_t send_packet(int socket, std::span<const std::byte> packet, const Descriptors& descriptors, int flags);
ssize_t receive_packet(int socket, std::span<std::byte> buffer, Descriptors* descriptors, int flags);

}  // namespace nvshare
