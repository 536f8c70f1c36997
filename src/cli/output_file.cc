#include "cli/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>

#include "base/fd.h"

namespace nvshare::cli {
namespace {

constexpr int kLinksMax = 16;
constexpr int kNamesTried = 16;

bool is_trusted(uid_t owner) { return owner == geteuid() || owner == 0; }

Error cannot_write(const std::string& file) { return error_format("cannot write %.150s: %s", file.c_str(), strerror(errno)); }

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

struct Place {
  std::string path;                    // where the links lead
  std::optional<struct stat> is = {};  // what is there; none: nothing
  int descriptor = -1;                 // where it is a name of one of our open files, as /dev/stdout is
};

// The file descriptor that a path like /dev/stdout leads to; -1: none.
int descriptor_of(std::string_view path) {
  for (const std::string_view folder : {"/proc/self/fd/", "/dev/fd/"}) {
    if (path.substr(0, folder.size()) != folder) continue;
    int descriptor = -1;
    const std::string_view number = path.substr(folder.size());
    const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), descriptor);
    if (problem == std::errc() && end == number.data() + number.size()) return descriptor;
  }
  return -1;
}

// What is at the end of the links of `file`.
Result<Place> place_of(const std::string& file) {
  Place place{file};
  for (int links = 0; links <= kLinksMax; ++links) {
    struct stat status {};
    place.descriptor = descriptor_of(place.path);
    if (place.descriptor >= 0) {
      if (fstat(place.descriptor, &status) != 0) return cannot_write(file);
      place.is = status;
      return place;
    }
    if (lstat(place.path.c_str(), &status) != 0) {
      if (errno == ENOENT) return place;
      return cannot_write(file);
    }
    if (!S_ISLNK(status.st_mode)) {
      place.is = status;
      return place;
    }
    if (!is_trusted(status.st_uid))
      return error_format("cannot write %.150s: it is a link of another user (uid %u), who could have any file of yours overwritten; %s",
                          file.c_str(), static_cast<unsigned>(status.st_uid), "name another file, or what the link leads to");
    // Another process's pipe in /proc names no path: what it leads to is opened through the link.
    struct stat target {};
    if (stat(place.path.c_str(), &target) == 0 && !S_ISREG(target.st_mode)) {
      place.is = target;
      return place;
    }
    char text[PATH_MAX];
    const ssize_t length = readlink(place.path.c_str(), text, sizeof text);
    if (length <= 0 || static_cast<size_t>(length) == sizeof text) return cannot_write(file);
    const std::string to(text, static_cast<size_t>(length));
    place.path = to.front() == '/' ? to : folder_of(place.path) + "/" + to;
  }
  errno = ELOOP;
  return cannot_write(file);
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

// A pipe, a device, or a regular file of ours in a folder where we may make none.
Result<void> write_as_it_stands(const std::string& file, const Place& place, std::string_view text) {
  if (S_ISDIR(place.is->st_mode)) {
    errno = EISDIR;
    return cannot_write(file);
  }
  const bool regular = S_ISREG(place.is->st_mode);
  if (!is_trusted(place.is->st_uid) || (regular && (place.is->st_uid != geteuid() || place.is->st_nlink != 1)))
    return error_format("cannot write %.150s: it is another user's (uid %u); name another file", file.c_str(),
                        static_cast<unsigned>(place.is->st_uid));
  FileDescriptor fd(open(place.path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | (regular ? O_NOFOLLOW : 0)));
  struct stat opened {};
  if (!fd || fstat(fd.get(), &opened) != 0) return cannot_write(file);
  if (opened.st_dev != place.is->st_dev || opened.st_ino != place.is->st_ino)
    return error_format("cannot write %.150s: it is another file than a moment ago", file.c_str());
  if (regular && ftruncate(fd.get(), 0) != 0) return cannot_write(file);
  if (!write_all(fd.get(), text)) return cannot_write(file);
  return {};
}

// A file of a name that nothing has.
FileDescriptor make_beside(const std::string& path, std::string* name) {
  timespec now{};
  for (int tried = 0; tried < kNamesTried; ++tried) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    *name = path + ".new-" + std::to_string(getpid()) + "-" + std::to_string(now.tv_nsec);
    FileDescriptor fd(open(name->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (fd || errno != EEXIST) return fd;
  }
  return {};
}

}  // namespace

Result<void> write_output(const std::string& file, std::string_view text) {
  auto place = place_of(file);
  if (!place) return place.error();
  // From where the file stands, as the shell that opened it expects.
  if (place->descriptor >= 0) return write_all(place->descriptor, text) ? Result<void>() : cannot_write(file);
  if (place->is && !S_ISREG(place->is->st_mode)) return write_as_it_stands(file, *place, text);
  std::string beside;
  const FileDescriptor fd = make_beside(place->path, &beside);
  if (!fd) {
    if (place->is && (errno == EACCES || errno == EROFS)) return write_as_it_stands(file, *place, text);
    return cannot_write(file);
  }
  const bool keeps = place->is && place->is->st_uid == geteuid();
  if ((!keeps || fchmod(fd.get(), place->is->st_mode & 0777) == 0) && write_all(fd.get(), text) &&
      rename(beside.c_str(), place->path.c_str()) == 0)
    return {};
  const Error problem = cannot_write(file);
  unlink(beside.c_str());
  return problem;
}

Result<void> check_output(const std::string& file) {
  auto place = place_of(file);
  if (!place) return place.error();
  if (place->is && S_ISDIR(place->is->st_mode)) {
    errno = EISDIR;
    return cannot_write(file);
  }
  if (place->descriptor >= 0) return {};
  if (access(folder_of(place->path).c_str(), W_OK | X_OK) == 0) return {};
  if (place->is && access(place->path.c_str(), W_OK) == 0) return {};
  return cannot_write(file);
}

Result<void> write_new_output(const std::string& file, std::string_view text) {
  const FileDescriptor fd(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return error_format("cannot create %.200s: %s; accepted: the name of a new file", file.c_str(), strerror(errno));
  if (write_all(fd.get(), text)) return {};
  const Error why = cannot_write(file);
  unlink(file.c_str());  // half of it is of no use, and would be in the way of the next try
  return why;
}

}  // namespace nvshare::cli
