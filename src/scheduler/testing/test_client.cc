#include "scheduler/testing/test_client.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "protocol/paths.h"

namespace nvshare::scheduler {
namespace {

// Between the test and the child, packets of one byte are commands and notices; every real packet is longer.
constexpr char kConnect = 'c';
constexpr char kClosed = 'e';
constexpr unsigned kForkedChildSeconds = 60;

int connect_to(const std::string& path, int type) {
  int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  for (auto waited = std::chrono::milliseconds(0); waited < kPatience; waited += std::chrono::milliseconds(10)) {
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
    usleep(10'000);
  }
  close(fd);
  return -1;
}

// The child's life. No allocation after the first connect, no return.
[[noreturn]] void relay(int control, const std::string& path, bool forks) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int scheduler = -1;
  std::byte bytes[protocol::kMessageBytesMax + 1];
  Descriptors descriptors;
  while (true) {
    pollfd polled[2] = {{control, POLLIN, 0}, {scheduler, POLLIN, 0}};
    if (poll(polled, scheduler >= 0 ? 2 : 1, -1) < 0) continue;
    if (polled[0].revents != 0) {
      ssize_t length = receive_packet(control, bytes, &descriptors, 0);
      if (length <= 0) _exit(0);
      if (length > 1) {
        send_packet(scheduler, {bytes, static_cast<size_t>(length)}, descriptors, MSG_NOSIGNAL);
      } else {
        if (scheduler >= 0) close(scheduler);
        scheduler = connect_to(path, SOCK_SEQPACKET);
        if (forks && fork() == 0) {
          close(control);
          alarm(kForkedChildSeconds);
          while (true) pause();
        }
      }
      continue;
    }
    if (scheduler >= 0 && polled[1].revents != 0) {
      ssize_t length = receive_packet(scheduler, bytes, &descriptors, 0);
      if (length <= 0) {
        close(scheduler);
        scheduler = -1;
        bytes[0] = static_cast<std::byte>(kClosed);
        length = 1;
      }
      send_packet(control, {bytes, static_cast<size_t>(length)}, descriptors, MSG_NOSIGNAL);
    }
  }
}

}  // namespace

TestClient::TestClient(const std::string& socket_path, bool forks) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) std::abort();
  control_.reset(pair[0]);
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    // Other clients' controls were inherited; their ends must be theirs alone.
    for (int fd = 3; fd < 256; ++fd) {
      if (fd != pair[1]) close(fd);
    }
    relay(pair[1], socket_path, forks);
  }
  setpgid(pid_, pid_);  // whichever of the two comes first
  close(pair[1]);
}

TestClient::~TestClient() {
  if (!control_) return;
  ::kill(-pid_, SIGKILL);  // its forked child as well
  waitpid(pid_, nullptr, 0);
}

void TestClient::connect() {
  closed_ = false;
  ::send(control_.get(), &kConnect, 1, MSG_NOSIGNAL);
}

void TestClient::kill(int signal) { ::kill(pid_, signal); }

void TestClient::wait_for_death() {
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
}

void TestClient::send_packet(const protocol::Packet& packet, const Descriptors& descriptors) {
  nvshare::send_packet(control_.get(), packet.span(), descriptors, MSG_NOSIGNAL);
}

bool TestClient::expect_close() {
  while (receive(kPatience)) {
  }
  return closed_;
}

std::optional<protocol::Packet> TestClient::receive(std::chrono::milliseconds time) {
  pollfd polled{control_.get(), POLLIN, 0};
  if (closed_ || poll(&polled, 1, static_cast<int>(time.count())) <= 0) return std::nullopt;
  protocol::Packet packet;
  ssize_t length = receive_packet(control_.get(), packet.bytes, &received_, 0);
  if (length <= 1) {
    closed_ = true;
    return std::nullopt;
  }
  packet.length = static_cast<uint32_t>(length);
  return packet;
}

protocol::Register test_registration(uint64_t allocated, uint8_t gpu) {
  protocol::Register message{};
  message.version_min = protocol::kVersionMin;
  message.version_max = protocol::version_spoken();
  std::memset(message.gpu_uuid, gpu, sizeof message.gpu_uuid);
  message.gpu_total_bytes = 16ULL << 30;
  message.memory.allocated = allocated;
  message.memory.swappable_host = allocated;
  std::strcpy(message.gpu_name, "test card");
  std::strcpy(message.program, "test");
  return message;
}

FileDescriptor connect_admin(const std::string& runtime_dir) {
  return FileDescriptor(connect_to(runtime_dir + protocol::kAdminSocket, SOCK_STREAM));
}

std::string ask_admin(const std::string& runtime_dir, const std::string& request) {
  const FileDescriptor socket = connect_admin(runtime_dir);
  std::string line = request + "\n";
  if (!socket || ::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0) return {};
  std::string reply;
  pollfd polled{socket.get(), POLLIN, 0};
  while (reply.find('\n') == std::string::npos && poll(&polled, 1, static_cast<int>(kPatience.count())) > 0) {
    char bytes[4096];
    ssize_t length = recv(socket.get(), bytes, sizeof bytes, 0);
    if (length <= 0) break;
    reply.append(bytes, static_cast<size_t>(length));
  }
  return reply.substr(0, reply.find('\n'));
}

TestFolder::TestFolder(const std::string& parent) : path_(parent + "/nvshare-test-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) std::abort();
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace nvshare::scheduler
