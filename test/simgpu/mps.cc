#include "simgpu/mps.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

namespace simgpu {
using namespace nvshare::cuda;

namespace {

constexpr auto kConnectionFailed = static_cast<CUresult>(805);  // CUDA_ERROR_MPS_CONNECTION_FAILED

std::atomic<int> g_server{-1};
std::atomic<bool> g_lost{false};

}  // namespace

CUresult attach_to_mps() {
  const char* directory = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  if (directory == nullptr || g_server.load() >= 0) return CUDA_SUCCESS;
  const std::string path = std::string(directory) + "/control";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return CUDA_SUCCESS;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (server < 0 || connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(server);
    return CUDA_SUCCESS;
  }
  char answer = 0;
  if (send(server, "attach", 6, MSG_NOSIGNAL) != 6 || recv(server, &answer, 1, 0) != 1 || answer != 'y') {
    close(server);
    return kConnectionFailed;
  }
  g_server.store(server);
  return CUDA_SUCCESS;
}

bool mps_is_lost() {
  const int server = g_server.load(std::memory_order_relaxed);
  if (server < 0) return false;
  if (g_lost.load(std::memory_order_relaxed)) return true;
  char byte = 0;
  if (recv(server, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0) g_lost.store(true);
  return g_lost.load();
}

}  // namespace simgpu
