#include "load/scheduler.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "protocol/paths.h"

namespace nvshare::bench {
namespace {

constexpr int kStartPatienceMs = 20'000;

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "load: %s\n", what.c_str());
  std::exit(1);
}

int connect_to(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

// It listens for admins before it does for clients, and answers once it does for both.
bool answers(const std::string& admin_socket) {
  const int fd = connect_to(admin_socket);
  if (fd < 0) return false;
  constexpr std::string_view kQuestion = "{\"request\":\"status\"}\n";
  char first = 0;
  const bool is_answered =
      write(fd, kQuestion.data(), kQuestion.size()) == static_cast<ssize_t>(kQuestion.size()) && read(fd, &first, 1) == 1;
  close(fd);
  return is_answered;
}

}  // namespace

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Scheduler::Scheduler(const std::string& program, const std::vector<std::string>& flags, const std::string& folder) : folder_(folder) {
  char made[] = "/tmp/nvs-load-XXXXXX";
  if (folder_.empty()) {
    if (mkdtemp(made) == nullptr) give_up("cannot make a folder in /tmp");
    folder_ = made;
  }
  std::vector<std::string> words = {program, "--runtime-dir", folder_ + "/run", "--lock-dir", folder_ + "/lock", "--nvml", "off"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::filesystem::create_directory(folder_ + "/run");
  const int log = open((folder_ + "/log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(log);
  for (int waited = 0; waited < kStartPatienceMs; waited += 10) {
    if (answers(admin_socket())) return;
    usleep(10'000);
  }
  give_up(program + " does not start; its log is " + folder_ + "/log");
}

Scheduler::~Scheduler() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string Scheduler::client_socket() const { return folder_ + "/run" + protocol::kClientSocket; }
std::string Scheduler::admin_socket() const { return folder_ + "/run" + protocol::kAdminSocket; }

ProcessorTime processor_time(pid_t pid) {
  ProcessorTime time;
  std::error_code problem;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", problem)) {
    double used_ns = 0, held_up_ns = 0;
    std::ifstream(task.path() / "schedstat") >> used_ns >> held_up_ns;
    time.used_s += used_ns / 1e9;
    time.held_up_s += held_up_ns / 1e9;
  }
  return time;
}

ProcessorTime Scheduler::processor_time() const { return bench::processor_time(pid_); }
double Scheduler::cpu_seconds() const { return processor_time().used_s; }

double Scheduler::resident_mib() const {
  double size = 0, pages = 0;
  std::ifstream("/proc/" + std::to_string(pid_) + "/statm") >> size >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

bool Scheduler::lives() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

Admin::Admin(const std::string& path) : socket_(connect_to(path)), part_(size_t{1} << 20) {}

template <typename Take>
bool Admin::exchange(const std::string& line, int patience_s, Take take) {
  const std::string packet = line + "\n";
  timeval patience{patience_s, 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0) return false;
  for (char last = 0; last != '\n';) {
    const ssize_t got = recv(socket_.get(), part_.data(), part_.size(), 0);
    if (got <= 0) return false;
    take(part_.data(), static_cast<size_t>(got));
    last = part_[static_cast<size_t>(got) - 1];
  }
  return true;
}

std::optional<std::string> Admin::ask(const std::string& line, int patience_s) {
  std::string answer;
  if (!exchange(line, patience_s, [&](const char* part, size_t length) { answer.append(part, length); })) return std::nullopt;
  return answer;
}

bool Admin::ask_and_forget(const std::string& line) {
  return exchange(line, 600, [](const char*, size_t) {});
}

}  // namespace nvshare::bench
