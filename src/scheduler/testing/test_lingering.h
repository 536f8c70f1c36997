// For tests: a TCP connection within this process whose last close() waits for `seconds`, as its peer reads nothing of what is in it.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/fd.h"

namespace nvshare::scheduler {

struct LingeringSocket {
  FileDescriptor socket;
  FileDescriptor peer;

  explicit LingeringSocket(int seconds) {
    const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    peer.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const char part[4096] = {};
    while (send(socket.get(), part, sizeof part, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    const linger wait{1, seconds};
    EXPECT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
  }
};

}  // namespace nvshare::scheduler
