#include "scheduler/gpus/gpu_lock.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "scheduler/log.h"
#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {
namespace {

// Only root can make anything in /run, so nobody is there before root's scheduler.
constexpr char kOfRoot[] = "/run/nvshare-locks";
// Of a user: beside which others' are found.
constexpr const char* kOfUsers[] = {"/run/lock/nvshare-locks-", "/tmp/nvshare-locks-"};
constexpr char kOfUserWithin[] = "user-";

// Another scheduler that only looks whether a GPU is free holds its lock for microseconds.
constexpr int kAttempts = 5;
constexpr useconds_t kAttemptPauseUs = 2000;

// A folder of our own in which nobody else can make anything. errno says why not; EPERM: it is somebody else's.
bool make_own_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return false;
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return false;
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
    errno = EPERM;
    return false;
  }
  const mode_t narrower = status.st_mode & 0755;
  return (status.st_mode & 07777) == narrower || chmod(path.c_str(), narrower) == 0;
}

// Where this user's locks are.
Result<std::string> own_directory(const std::string& wanted) {
  const std::string uid = std::to_string(geteuid());
  std::vector<std::string> places;
  if (!wanted.empty()) {
    places = {wanted};
    if (geteuid() != 0) places.push_back(wanted + "/" + kOfUserWithin + uid);
  } else if (geteuid() == 0) {
    places = {kOfRoot};
  } else {
    for (const char* prefix : kOfUsers) places.push_back(prefix + uid);
  }
  int error = 0;
  for (const std::string& place : places) {
    if (make_own_directory(place)) return place;
    error = error == 0 ? errno : error;
  }
  if (error == EPERM) {
    return error_format(
        "%.120s is no folder of user %s, and others could lock its files; remove it, or set NVSHARE_LOCK_DIR to a folder of its own",
        places[0].c_str(), uid.c_str());
  }
  return error_format("no folder %.120s: %s; set NVSHARE_LOCK_DIR", places[0].c_str(), std::strerror(error));
}

// For its owner alone: whoever can open a file can lock it. One that others could open, or that is not ours, is replaced.
FileDescriptor open_lock_file(const std::string& path) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    struct stat status {};
    if (file && fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() && (status.st_mode & 0077) == 0) {
      return file;
    }
    if (!file && errno != ELOOP && errno != EACCES && errno != EISDIR && errno != ENXIO) break;
    if (unlink(path.c_str()) != 0) break;
  }
  return {};
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

bool is_removed(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && status.st_nlink == 0;
}

// ---- what schedulers of other users say ----
// A lock file is its owner's alone, so beside it there is one that everybody can read, and that nothing is locked by.

void write_owner(const std::string& path, const std::string& content) {
  const std::string beside = path + ".new";
  unlink(beside.c_str());
  FileDescriptor file(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file || fchmod(file.get(), 0644) != 0) return;
  if (write(file.get(), content.data(), content.size()) == static_cast<ssize_t>(content.size())) rename(beside.c_str(), path.c_str());
}

// The owner of the GPU by that file, for people; empty: nobody. Believed of a process that lives and whose user wrote the file.
std::string living_owner(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat written {};
  if (!file || fstat(file.get(), &written) != 0 || !S_ISREG(written.st_mode)) return {};
  const std::string content = content_of(file.get());
  int pid = 0;
  unsigned long long start = 0;
  if (std::sscanf(content.c_str(), "pid %d, started %llu", &pid, &start) != 2 || pid == getpid()) return {};
  struct stat process {};
  if (stat(("/proc/" + std::to_string(pid)).c_str(), &process) != 0 || process.st_uid != written.st_uid) return {};
  return start_time_of(pid) == start ? printable(content) : std::string();
}

// The folders that other users' schedulers have their locks in.
std::vector<std::string> others_directories(const std::string& wanted, const std::string& own) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& path) {
    if (path != own) found.push_back(path);
  };
  add(wanted.empty() ? kOfRoot : wanted);
  std::vector<std::string> prefixes;
  if (wanted.empty()) {
    prefixes.assign(std::begin(kOfUsers), std::end(kOfUsers));
  } else {
    prefixes = {wanted + "/" + kOfUserWithin};
  }
  for (const std::string& prefix : prefixes) {
    const size_t slash = prefix.rfind('/');
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(prefix.substr(0, slash).c_str()), closedir);
    if (!folder) continue;
    const std::string name = prefix.substr(slash + 1);
    while (const dirent* entry = readdir(folder.get())) {
      if (std::string(entry->d_name).starts_with(name)) add(prefix.substr(0, slash + 1) + entry->d_name);
    }
  }
  return found;
}

std::string owner_elsewhere(const std::string& wanted, const std::string& own, const std::string& gpu_uuid) {
  for (const std::string& folder : others_directories(wanted, own)) {
    if (std::string owner = living_owner(folder + "/" + gpu_uuid + ".owner"); !owner.empty()) return owner;
  }
  return {};
}

}  // namespace

Result<GpuLock> GpuLock::acquire(const std::string& directory, const std::string& gpu_uuid, const std::string& runtime_dir) {
  Result<std::string> folder = own_directory(directory);
  if (!folder) return error_format("cannot lock %s: %.400s", gpu_uuid.c_str(), folder.error().text);
  const std::string path = *folder + "/" + gpu_uuid + ".lock";
  FileDescriptor file;
  bool locked = false;
  do {
    file = open_lock_file(path);
    if (!file) return error_format("cannot lock %s: %.150s: %s", gpu_uuid.c_str(), path.c_str(), std::strerror(errno));
    locked = try_lock(file.get());
  } while (locked && is_removed(file.get()));  // by whoever had it, after it was opened here
  if (!locked) {
    if (errno != EWOULDBLOCK) return error_format("cannot lock %.150s: %s", path.c_str(), std::strerror(errno));
    std::string owner = content_of(file.get());
    return error_format("%s is managed by another scheduler (%.130s): use that one, or end it first", gpu_uuid.c_str(),
                        owner.empty() ? "unknown" : owner.c_str());
  }
  if (const std::string owner = owner_elsewhere(directory, *folder, gpu_uuid); !owner.empty()) {
    // What another user says must not keep root from serving.
    if (geteuid() != 0) return error_format("%s is managed by another user's scheduler (%.150s)", gpu_uuid.c_str(), owner.c_str());
    spdlog::warn("{} is also managed by another user's scheduler ({}): end it", gpu_uuid, owner);
  }
  const std::string content = "pid " + std::to_string(getpid()) + ", started " + std::to_string(start_time_of(getpid())) +
                              ", runtime directory " + runtime_dir + "\n";
  if (ftruncate(file.get(), 0) != 0 || pwrite(file.get(), content.data(), content.size(), 0) < 0) {
    return error_format("cannot write %.150s: %s", path.c_str(), std::strerror(errno));
  }
  const std::string owner_path = *folder + "/" + gpu_uuid + ".owner";
  write_owner(owner_path, content);
  return GpuLock(std::move(file), path, owner_path);
}

// In this order: whoever opens a file that was removed while it was locked sees that once it has the lock.
void GpuLock::remove() {
  if (!file_) return;
  unlink(owner_path_.c_str());
  unlink(path_.c_str());
  file_.reset();
}

}  // namespace nvshare::scheduler
