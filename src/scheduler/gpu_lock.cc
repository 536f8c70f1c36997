#include "scheduler/gpu_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nvshare::scheduler {
namespace {

constexpr char kDirectory[] = "/run/lock/nvshare";
constexpr char kDirectoryElse[] = "/tmp/nvshare-lock";

// Another scheduler that only looks whether a GPU is free holds its lock for microseconds.
constexpr int kAttempts = 5;
constexpr useconds_t kAttemptPauseUs = 2000;

bool make_shared_directory(const std::string& path) {
  if (mkdir(path.c_str(), 01777) == 0) return chmod(path.c_str(), 01777) == 0;  // past the umask
  struct stat status {};
  return errno == EEXIST && lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// Without O_CREAT first: in a sticky folder the kernel refuses O_CREAT on a file that belongs to somebody else.
FileDescriptor open_lock_file(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  FileDescriptor file(open(path.c_str(), kFlags));
  if (!file && errno == ENOENT) {
    file.reset(open(path.c_str(), kFlags | O_CREAT, 0666));
    if (file) fchmod(file.get(), 0666);
  }
  return file;
}

std::string content_of(int fd) {
  char text[512];
  ssize_t length = pread(fd, text, sizeof text, 0);
  std::string content(text, length > 0 ? static_cast<size_t>(length) : 0);
  while (!content.empty() && content.back() == '\n') content.pop_back();
  return content;
}

bool try_lock(int fd) {
  for (int i = 0; i < kAttempts; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK) return false;
    usleep(kAttemptPauseUs);
  }
  errno = EWOULDBLOCK;
  return false;
}

}  // namespace

Result<GpuLock> GpuLock::acquire(const std::string& directory, const std::string& gpu_uuid, const std::string& runtime_dir) {
  std::string folder = directory.empty() ? kDirectory : directory;
  if (!make_shared_directory(folder)) {
    if (directory.empty()) folder = kDirectoryElse;
    if (!make_shared_directory(folder)) {
      return error_format("cannot lock %s: no folder %.120s: %s; set NVSHARE_LOCK_DIR", gpu_uuid.c_str(), folder.c_str(),
                          std::strerror(errno));
    }
  }
  std::string path = folder + "/" + gpu_uuid + ".lock";
  FileDescriptor file = open_lock_file(path);
  if (!file) return error_format("cannot lock %s: %.150s: %s", gpu_uuid.c_str(), path.c_str(), std::strerror(errno));
  if (!try_lock(file.get())) {
    if (errno != EWOULDBLOCK) return error_format("cannot lock %.150s: %s", path.c_str(), std::strerror(errno));
    std::string owner = content_of(file.get());
    return error_format("%s is managed by another scheduler (%.150s)", gpu_uuid.c_str(), owner.empty() ? "unknown" : owner.c_str());
  }
  std::string content = "pid " + std::to_string(getpid()) + ", runtime directory " + runtime_dir + "\n";
  if (ftruncate(file.get(), 0) != 0 || pwrite(file.get(), content.data(), content.size(), 0) < 0) {
    return error_format("cannot write %.150s: %s", path.c_str(), std::strerror(errno));
  }
  return GpuLock(std::move(file));
}

}  // namespace nvshare::scheduler
