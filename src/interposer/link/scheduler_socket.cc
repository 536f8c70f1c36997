#include "interposer/link/scheduler_socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <atomic>

#include "interposer/link/scheduler_need.h"
#include "interposer/log.h"
#include "protocol/paths.h"

namespace nvshare::interposer {

namespace {

constexpr time_t kPatience_s = 5;

bool socket_address(sockaddr_un* address) {
  const char* directory = getenv(protocol::kRuntimeDirectoryVariable);
  if (directory != nullptr && *directory != '\0' && strcmp(directory, protocol::kRuntimeDirectoryDefault) != 0 && preloaded_by_system()) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
      log(LogLevel::kWarning, "%s is ignored: /etc/ld.so.preload has this library, so the scheduler is the one in %s",
          protocol::kRuntimeDirectoryVariable, protocol::kRuntimeDirectoryDefault);
    }
    directory = nullptr;
  }
  if (directory == nullptr || *directory == '\0') directory = protocol::kRuntimeDirectoryDefault;
  *address = {};
  address->sun_family = AF_UNIX;
  int length = snprintf(address->sun_path, sizeof address->sun_path, "%s%s", directory, protocol::kClientSocket);
  if (length > 0 && length < static_cast<int>(sizeof address->sun_path)) return true;
  log(LogLevel::kWarning, "%s is '%.60s...': too long, at most %zu characters fit", protocol::kRuntimeDirectoryVariable, directory,
      sizeof address->sun_path - sizeof protocol::kClientSocket);
  return false;
}

}  // namespace

FileDescriptor connect_to_scheduler() {
  sockaddr_un address;
  if (!socket_address(&address)) {
    errno = ENOENT;
    return FileDescriptor();
  }
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  // Before it connects, for which it may have to wait, too: a scheduler that stands still takes no more than its queue.
  const timeval patience{kPatience_s, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    int error = errno;
    log(LogLevel::kDebug, "no scheduler at %s: %s", address.sun_path, strerror(error));
    fd.reset();
    errno = error;
    return fd;
  }
  return fd;
}

}  // namespace nvshare::interposer
