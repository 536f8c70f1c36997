#include "interposer/link/scheduler_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>

#include "interposer/link/scheduler_need.h"
#include "interposer/log.h"
#include "interposer/sync.h"
#include "protocol/paths.h"

namespace nvshare::interposer {

namespace {

constexpr time_t kSocketPatience_s = 5;
constexpr int64_t kSocketPatience_ns = kSocketPatience_s * 1'000'000'000;

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
  static std::atomic<bool> told_relative{false};
  if (*directory != '/' && !told_relative.exchange(true)) {
    log(LogLevel::kWarning, "%s is '%.60s'; accepted: an absolute path. Looked for from the folder that the program works in",
        protocol::kRuntimeDirectoryVariable, directory);
  }
  *address = {};
  address->sun_family = AF_UNIX;
  int length = snprintf(address->sun_path, sizeof address->sun_path, "%s%s", directory, protocol::kClientSocket);
  if (length > 0 && length < static_cast<int>(sizeof address->sun_path)) return true;
  log(LogLevel::kWarning, "%s is '%.60s...': too long, at most %zu characters fit", protocol::kRuntimeDirectoryVariable, directory,
      sizeof address->sun_path - sizeof protocol::kClientSocket);
  return false;
}

// A folder on the socket's way was removed, and is seen still: a container's mount of it, which a folder of the same name does not replace.
bool leads_nowhere(const char* socket) {
  char folder[sizeof(sockaddr_un::sun_path)];
  snprintf(folder, sizeof folder, "%s", socket);
  for (int each = 0; each < 2; ++each) {  // its own, and the one above
    char* const slash = strrchr(folder, '/');
    if (slash == nullptr || slash == folder) return false;
    *slash = '\0';
    struct stat status;  // not by the C library's stat(), which is none of GLIBC_2.17
    if (syscall(SYS_newfstatat, AT_FDCWD, folder, &status, 0) == 0 && status.st_nlink == 0) {
      static std::atomic<bool> told{false};
      if (told.exchange(true)) return true;
      log(LogLevel::kWarning, "the folder %s was removed, and this program sees what it was: if it is in a container, start that anew",
          folder);
      return true;
    }
  }
  return false;
}

// A signal of the program's ends a wait early.
template <typename Call>
bool uninterrupted(Call call) {
  const int64_t deadline = now_ns() + kSocketPatience_ns;
  while (!call()) {
    if (errno != EINTR) return false;
    if (now_ns() < deadline) continue;
    errno = EAGAIN;
    return false;
  }
  return true;
}

}  // namespace

bool short_of_descriptors(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS; }

bool wait_readable(int fd, int64_t patience_ns) {
  const int64_t deadline = now_ns() + patience_ns;
  for (int64_t rest = patience_ns; rest > 0; rest = deadline - now_ns()) {
    pollfd readable{fd, POLLIN, 0};
    const int ready = poll(&readable, 1, static_cast<int>((rest + 999'999) / 1'000'000));
    if (ready == 1) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

bool send_whole(int fd, std::span<const std::byte> packet, const Descriptors& descriptors) {
  return uninterrupted([&] { return send_packet(fd, packet, descriptors, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size()); });
}

FileDescriptor connect_to_scheduler() {
  sockaddr_un address;
  if (!socket_address(&address)) {
    errno = ENOENT;
    return FileDescriptor();
  }
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) {
    const int error = errno;
    const bool nobody_there = access(address.sun_path, F_OK) != 0 && errno == ENOENT;
    errno = nobody_there ? ENOENT : error;
    return fd;
  }
  // Before it connects, for which it may have to wait, too: a scheduler that stands still takes no more than its queue.
  const timeval patience{kSocketPatience_s, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  if (!uninterrupted([&] { return connect(fd.get(), where, sizeof address) == 0; })) {
    int error = errno;
    if (error == ENOENT && leads_nowhere(address.sun_path)) error = ESTALE;  // which does not say that there is none
    log(LogLevel::kDebug, "no scheduler at %s: %s", address.sun_path, strerror(error));
    fd.reset();
    errno = error;
    return fd;
  }
  return fd;
}

}  // namespace nvshare::interposer
