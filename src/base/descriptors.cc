#include "base/descriptors.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

namespace nvshare {

namespace {

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * Descriptors::kMax);
// As many as a packet can have (SCM_MAX_FD): what there is no room for the kernel closes, at once.
constexpr size_t kReceivedBytes = CMSG_SPACE(sizeof(int) * 253);

}  // namespace

ssize_t send_packet(int socket, std::span<const std::byte> packet, const Descriptors& descriptors, int flags) {
  if (descriptors.count() == 0) return send(socket, packet.data(), packet.size(), flags);
  alignas(cmsghdr) char control[kControlBytes] = {};
  iovec data{const_cast<std::byte*>(packet.data()), packet.size()};
  const size_t bytes = sizeof(int) * static_cast<size_t>(descriptors.count());
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  for (int i = 0; i < descriptors.count(); ++i) {
    const int fd = descriptors.get(i);
    memcpy(CMSG_DATA(header) + sizeof fd * static_cast<size_t>(i), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, flags);
}

ssize_t receive_packet(int socket, std::span<std::byte> buffer, Descriptors* descriptors, int flags) {
  descriptors->clear();
  alignas(cmsghdr) char control[kReceivedBytes];
  iovec data{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  // What the kernel installed is ours to close, also of a packet that is not wanted.
  bool excess = false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + sizeof fd * i, sizeof fd);
      if (!descriptors->add(FileDescriptor(fd))) excess = true;
    }
  }
  // Not all could be opened, as there is room for more than a packet can have.
  if (!excess && (message.msg_flags & MSG_CTRUNC) != 0) descriptors->clear();
  if (!excess) return got;
  descriptors->clear();
  errno = EMSGSIZE;
  return -1;
}

}  // namespace nvshare
