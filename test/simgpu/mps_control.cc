// A stand-in nvidia-cuda-mps-control: `-f` is the daemon, without arguments it reads commands from standard input. It knows what
// nvshare-scheduler asks: get_server_list, get_client_list PID, quit. README.md says what was measured of the real one.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "base/fd.h"

namespace {

using nvshare::FileDescriptor;

constexpr size_t kPacketMost = 1 << 15;

std::string directory() {
  const char* path = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return path != nullptr ? path : "/tmp/nvidia-mps";
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    std::fprintf(stderr, "the pipe directory's name is too long\n");
    std::exit(1);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

class Daemon {
 public:
  int run() {
    const std::string path = directory() + "/control";
    lock_ = FileDescriptor(open((directory() + "/control_lock").c_str()));
    if (!lock_ || flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      std::fprintf(stderr, "An instance of this daemon is already running\n");
      return 1;
    }
    if (std::getenv("SIMGPU_MPS_FAILS") != nullptr || access((directory() + "/fails").c_str(), F_OK) == 0) {
      std::fprintf(stderr, "MPS is not supported here\n");
      return 1;
    }
    unlink(path.c_str());
    const sockaddr_un address = address_of(path);
    listener_ = FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!listener_ || bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener_.get(), 64) != 0) {
      std::perror("cannot listen");
      return 1;
    }
    while (!quits_ || !programs_.empty()) serve();
    if (server_ > 0) kill(server_, SIGTERM);
    unlink(path.c_str());
    return 0;
  }

 private:
  static int open(const char* path) { return ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600); }

  void serve() {
    std::vector<pollfd> ready = {{listener_.get(), POLLIN, 0}};
    std::vector<pid_t> whose = {0};
    for (const auto& [pid, socket] : programs_) {
      ready.push_back({socket.get(), POLLIN, 0});
      whose.push_back(pid);
    }
    poll(ready.data(), ready.size(), 100);
    for (size_t i = 1; i < ready.size(); ++i) {
      if (ready[i].revents != 0) programs_.erase(whose[i]);
    }
    if (server_ > 0 && waitpid(server_, nullptr, WNOHANG) == server_) {  // its programs are lost
      server_ = 0;
      programs_.clear();
    }
    if (ready[0].revents != 0) accept_one();
  }

  void accept_one() {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ucred peer{};
    socklen_t length = sizeof peer;
    char text[256] = {};
    if (!socket || getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return;
    const ssize_t got = recv(socket.get(), text, sizeof text - 1, 0);
    if (got <= 0) return;
    const std::string command(text, static_cast<size_t>(got));
    if (command == "attach") return attach(std::move(socket), peer.pid);
    if (command == "quit") {
      quits_ = true;
      asked_to_quit_.push_back(std::move(socket));  // they are answered by our end
      return;
    }
    const std::string answer = answer_to(command) + "\n";
    static_cast<void>(!send(socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL));
  }

  void attach(FileDescriptor socket, pid_t pid) {
    const bool takes = !quits_;
    if (takes && server_ == 0) start_server();
    static_cast<void>(!send(socket.get(), takes ? "y" : "n", 1, MSG_NOSIGNAL));
    if (takes) programs_[pid] = std::move(socket);
  }

  void start_server() {
    server_ = fork();
    if (server_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "mps-server");
    while (true) pause();
  }

  std::string answer_to(const std::string& command) {
    if (command == "get_server_list") return server_ > 0 ? std::to_string(server_) : "";
    constexpr std::string_view kClients = "get_client_list ";
    if (command.starts_with(kClients)) {
      if (server_ == 0 || std::atoi(command.c_str() + kClients.size()) != server_)
        return "Server " + command.substr(kClients.size()) + " not found";
      std::string list;
      for (const auto& [pid, socket] : programs_) list += (list.empty() ? "" : "\n") + std::to_string(pid);
      return list;
    }
    return "Unknown command \"" + command + "\"";
  }

  FileDescriptor lock_;
  FileDescriptor listener_;
  pid_t server_ = 0;
  std::map<pid_t, FileDescriptor> programs_;
  std::vector<FileDescriptor> asked_to_quit_;
  bool quits_ = false;
};

int front_end() {
  const sockaddr_un address = address_of(directory() + "/control");
  for (std::string line; std::getline(std::cin, line);) {
    const FileDescriptor daemon(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    std::string answer(kPacketMost, '\0');
    ssize_t length = -1;
    if (connect(daemon.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        send(daemon.get(), line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size())) {
      length = recv(daemon.get(), answer.data(), answer.size(), 0);
    }
    if (length < 0) {
      std::fprintf(stderr, "Cannot find MPS control daemon process\n");
      return 1;
    }
    if (length > 1) std::fwrite(answer.data(), 1, static_cast<size_t>(length), stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return front_end();
  if (argc == 2 && std::strcmp(argv[1], "-f") == 0) return Daemon().run();
  std::fprintf(stderr, "usage: %s [-f]\n", argv[0]);
  return 1;
}
