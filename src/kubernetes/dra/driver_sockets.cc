#include "kubernetes/dra/driver_sockets.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/fd.h"

namespace nvshare::kubernetes::dra {
namespace {

// 0: somebody listens there.
int try_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno;
  return connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

}  // namespace

Result<void> check_is_free(const std::string& socket) {
  const int problem = try_socket(socket);
  if (problem == 0 || problem == EAGAIN) {
    return error_format("another driver serves on %.110s; two at a time each need their own NVSHARE_INSTANCE", socket.c_str());
  }
  return {};
}

void remove_dead_sockets(const std::string& folder, const std::string& begin, const std::string& end) {
  std::error_code problem;
  std::vector<std::string> dead;
  for (std::filesystem::directory_iterator file(folder, problem), last; !problem && file != last; file.increment(problem)) {
    const std::string name = file->path().filename().string();
    if (name.starts_with(begin) && name.ends_with(end) && try_socket(file->path().string()) == ECONNREFUSED) {
      dead.push_back(file->path().string());
    }
  }
  for (const std::string& path : dead) unlink(path.c_str());
}

}  // namespace nvshare::kubernetes::dra
