#include "interposer/own_socket.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <utility>

namespace nvshare::interposer {

namespace {

// Not by the C library's fstat(), which is none of GLIBC_2.17.
bool identify(int fd, uint64_t* device, uint64_t* inode) {
  struct stat status;
  if (syscall(SYS_fstat, fd, &status) != 0) return false;
  *device = status.st_dev;
  *inode = status.st_ino;
  return true;
}

}  // namespace

void OwnSocket::reset(FileDescriptor socket) {
  FileDescriptor before(get());  // closed here
  fd_.store(-1, std::memory_order_release);
  uint64_t device = 0, inode = 0;
  if (!socket || !identify(socket.get(), &device, &inode)) return;
  device_.store(device, std::memory_order_relaxed);
  inode_.store(inode, std::memory_order_relaxed);
  fd_.store(socket.release(), std::memory_order_release);
}

int OwnSocket::get() const {
  const int fd = fd_.load(std::memory_order_acquire);
  uint64_t device = 0, inode = 0;
  if (fd < 0 || !identify(fd, &device, &inode)) return -1;
  const bool same = device == device_.load(std::memory_order_relaxed) && inode == inode_.load(std::memory_order_relaxed);
  return same ? fd : -1;
}

// A datagram socket that is connected to itself, so that it takes one number, and nobody else sends to it.
bool WakeSocket::make() {
  if (get() >= 0) return true;
  FileDescriptor made(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return false;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  socklen_t length = offsetof(sockaddr_un, sun_path);  // the kernel finds a free name
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  if (bind(made.get(), address, length) != 0) return false;
  length = sizeof name;
  if (getsockname(made.get(), address, &length) != 0 || connect(made.get(), address, length) != 0) return false;
  socket_.reset(std::move(made));
  return true;
}

// If nothing more fits in, the thread will wake anyway.
void WakeSocket::wake() const {
  const int error = errno;
  const char one = 1;
  if (const int fd = get(); fd >= 0) syscall(SYS_sendto, fd, &one, sizeof one, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
  errno = error;
}

void WakeSocket::settle() const {
  const int error = errno;
  char taken;
  for (int fd = get(); fd >= 0 && syscall(SYS_recvfrom, fd, &taken, sizeof taken, MSG_DONTWAIT, nullptr, nullptr) > 0;) {
  }
  errno = error;
}

}  // namespace nvshare::interposer
