// Packets with open descriptors on a Unix socket (SCM_RIGHTS). The sender keeps its own copies; the receiver gets new ones, closed on exec.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/fd.h"

namespace nvshare {

// Who closes descriptors that somebody else has sent: close() may wait for as long as the sender likes (SO_LINGER, FUSE), also where it was
// the sender's last one only.
class DescriptorCloser {
 public:
  virtual ~DescriptorCloser() = default;
  // `whose`: of all that has one such number, one is closed at a time.
  virtual void close_later(FileDescriptor descriptor, uint64_t whose) = 0;
};

// The descriptors of one packet, owned.
class Descriptors {
 public:
  static constexpr int kMax = 16;

  Descriptors() = default;
  ~Descriptors() { clear(); }
  Descriptors(Descriptors&& other) noexcept { take_all(other); }
  Descriptors& operator=(Descriptors&& other) noexcept {
    if (this != &other) {
      clear();
      take_all(other);
    }
    return *this;
  }

  // Closes, from now on, what is not taken. Outlives this, and whatever it is moved to. null: closed here.
  void leave_to(DescriptorCloser* closer, uint64_t whose) {
    closer_ = closer;
    whose_ = whose;
  }

  int count() const { return count_; }
  int get(int index) const { return fds_[index].get(); }
  FileDescriptor take(int index) { return std::move(fds_[index]); }  // leaves a gap: for who takes them one by one
  // False: it has kMax already; the descriptor is closed.
  bool add(FileDescriptor descriptor) {
    if (count_ == kMax) {
      end(std::move(descriptor));
      return false;
    }
    fds_[count_++] = std::move(descriptor);
    return true;
  }
  void clear() {
    while (count_ > 0) end(std::move(fds_[--count_]));
  }

 private:
  void end(FileDescriptor descriptor) {
    if (closer_ != nullptr && descriptor) closer_->close_later(std::move(descriptor), whose_);
  }
  void take_all(Descriptors& other) {
    for (int i = 0; i < other.count_; ++i) fds_[i] = std::move(other.fds_[i]);
    count_ = std::exchange(other.count_, 0);
    closer_ = other.closer_;
    whose_ = other.whose_;
  }

  FileDescriptor fds_[kMax];
  int count_ = 0;
  DescriptorCloser* closer_ = nullptr;
  uint64_t whose_ = 0;
};

// As send() and recv(), with the descriptors; `flags` as theirs. A packet that came with more than Descriptors::kMax is an error
// (EMSGSIZE), and none of them is kept. One whose descriptors this process may not open, as it has too many files open, comes with none.
ssize_t send_packet(int socket, std::span<const std::byte> packet, const Descriptors& descriptors, int flags);
ssize_t receive_packet(int socket, std::span<std::byte> buffer, Descriptors* descriptors, int flags);

}  // namespace nvshare
