#include "scheduler/sockets/runtime_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>

#include "protocol/paths.h"

namespace nvshare::scheduler {
namespace {

constexpr int kBacklog = 1024;
constexpr std::chrono::milliseconds kBetweenLooks{10};  // whether another scheduler has ended

Result<void> make_parents(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    std::string parent = path.substr(0, slash);
    if (mkdir(parent.c_str(), 0755) != 0 && errno != EEXIST)
      return error_format("NVSHARE_RUNTIME_DIR (--runtime-dir): cannot create %.120s: %s", parent.c_str(), std::strerror(errno));
  }
  return {};
}

// A folder of ours; one that belongs to somebody else, or a link, would let them replace our sockets. Permissions become `mode`, of an
// existing folder at most `mode` if it may be `narrower`.
Result<void> make_own_folder(const std::string& path, mode_t mode, bool narrower = false) {
  bool is_new = mkdir(path.c_str(), mode) == 0;
  if (!is_new && errno != EEXIST) {
    return error_format("NVSHARE_RUNTIME_DIR (--runtime-dir): cannot create %.120s: %s", path.c_str(), std::strerror(errno));
  }
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return error_format("cannot look at %.150s: %s", path.c_str(), std::strerror(errno));
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
    return error_format("%.150s is not a folder of user %u; remove it or set NVSHARE_RUNTIME_DIR", path.c_str(), geteuid());
  }
  if (narrower && !is_new) mode &= status.st_mode;
  if ((status.st_mode & 07777) != mode && chmod(path.c_str(), mode) != 0) {
    return error_format("cannot set permissions of %.150s: %s", path.c_str(), std::strerror(errno));
  }
  return {};
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return error_format("%.120s is too long for a socket's name; accepted: up to %zu bytes", path.c_str(), sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool somebody_listens_at(const sockaddr_un& address, int type) {
  const FileDescriptor probe(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe && (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN);
}

std::string folder_of(const std::string& socket) { return socket.substr(0, socket.rfind('/')); }

FileId file_at(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

}  // namespace

Result<RuntimeDir> RuntimeDir::open(const std::string& path, std::chrono::nanoseconds patience) {
  if (auto ok = make_parents(path); !ok) return ok.error();
  if (auto ok = make_own_folder(path, 0755, true); !ok) return ok.error();
  if (auto ok = make_own_folder(folder_of(path + protocol::kClientSocket), 0755); !ok) return ok.error();
  if (auto ok = make_own_folder(folder_of(path + protocol::kAdminSocket), 0700); !ok) return ok.error();
  if (auto ok = make_own_folder(path + protocol::kJobsFolder, 0700); !ok) return ok.error();
  // For its owner alone: whoever can open it can lock it. One of an earlier release that others may have open is replaced.
  std::string lock_path = path + "/scheduler.lock";
  struct stat status {};
  if (lstat(lock_path.c_str(), &status) == 0 && (!S_ISREG(status.st_mode) || (status.st_mode & 0077) != 0)) unlink(lock_path.c_str());
  FileDescriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return error_format("cannot open %.150s: %s", lock_path.c_str(), std::strerror(errno));
  const auto until = std::chrono::steady_clock::now() + patience;
  bool is_locked = flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
  while (!is_locked && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kBetweenLooks);
    is_locked = flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
  }
  if (!is_locked) {
    char owner[32] = {};
    ssize_t length = pread(lock.get(), owner, sizeof owner - 1, 0);
    for (ssize_t i = 0; i < length; ++i) {
      if (owner[i] == '\n') owner[i] = 0;
    }
    if (length <= 0) {  // it is just about to write it
      return error_format("%.90s is served by another scheduler: use that one, end it, or take another folder (--runtime-dir)",
                          path.c_str());
    }
    return error_format(
        "%.90s is served by another scheduler (pid %s): use that one, end it ('systemctl stop nvshare-scheduler', or 'kill %s'), or take "
        "another folder (--runtime-dir)",
        path.c_str(), owner, owner);
  }
  std::string content = std::to_string(getpid()) + "\n";
  if (ftruncate(lock.get(), 0) != 0 || pwrite(lock.get(), content.data(), content.size(), 0) < 0) {
    return error_format("cannot write %.150s: %s", lock_path.c_str(), std::strerror(errno));
  }
  return RuntimeDir(path, std::move(lock));
}

RuntimeDir::~RuntimeDir() {
  if (!lock_) return;
  unlink((path_ + protocol::kClientSocket).c_str());
  unlink((path_ + protocol::kAdminSocket).c_str());
}

std::string RuntimeDir::jobs_folder() const { return path_ + protocol::kJobsFolder; }
std::string RuntimeDir::clients_folder() const { return folder_of(path_ + protocol::kClientSocket); }

Result<RuntimeDir::Listener> RuntimeDir::listen_at(const std::string& path, int type, mode_t mode, bool whoever_listens) const {
  Result<sockaddr_un> there = address_of(path);
  if (!there) return there.error();
  if (!whoever_listens && somebody_listens_at(*there, type)) return error_format("somebody already listens at %.180s", path.c_str());
  const std::string made = path_ + "/socket.new";
  const Result<sockaddr_un> address = address_of(made);
  if (!address) return address.error();
  unlink(made.c_str());
  Listener listener{FileDescriptor(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), {}};
  if (!listener.socket || bind(listener.socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
      chmod(made.c_str(), mode) != 0 || ::listen(listener.socket.get(), kBacklog) != 0) {
    return error_format("cannot listen at %.150s: %s", path.c_str(), std::strerror(errno));
  }
  listener.file = file_at(made);
  if (rename(made.c_str(), path.c_str()) == 0) return listener;
  const int problem = errno;
  unlink(made.c_str());
  return error_format("cannot replace %.150s: %s", path.c_str(), std::strerror(problem));
}

Result<FileDescriptor> RuntimeDir::listen_clients(bool whoever_listens) {
  Result<Listener> listener = listen_at(path_ + protocol::kClientSocket, SOCK_SEQPACKET, 0666, whoever_listens);
  if (!listener) return listener.error();
  clients_socket_ = listener->file;
  return std::move(listener->socket);
}

Result<FileDescriptor> RuntimeDir::listen_clients() { return listen_clients(false); }

Result<FileDescriptor> RuntimeDir::listen_clients_again() {
  if (auto ok = make_own_folder(clients_folder(), 0755); !ok) return ok.error();
  return listen_clients(true);
}

bool RuntimeDir::has_own_clients_socket() const {
  return clients_socket_ != FileId{} && file_at(path_ + protocol::kClientSocket) == clients_socket_;
}

Result<FileDescriptor> RuntimeDir::listen_admin() {
  Result<Listener> listener = listen_at(path_ + protocol::kAdminSocket, SOCK_STREAM, 0600, false);
  if (!listener) return listener.error();
  return std::move(listener->socket);
}

}  // namespace nvshare::scheduler
