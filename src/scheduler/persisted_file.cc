#include "scheduler/persisted_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace nvshare::scheduler {
namespace {

constexpr off_t kBytesMax = off_t{16} << 20;

}  // namespace

Result<std::optional<std::string>> read_persisted_file(const std::string& file) {
  FileDescriptor fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return std::optional<std::string>();
  struct stat status {};
  if (!fd || fstat(fd.get(), &status) != 0) return error_format("cannot read %.150s: %s", file.c_str(), std::strerror(errno));
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return error_format("%.150s is not a plain file that only user %u can write", file.c_str(), geteuid());
  }
  if (status.st_size > kBytesMax) return error_format("%.150s has more than %lld bytes", file.c_str(), static_cast<long long>(kBytesMax));
  std::string content(static_cast<size_t>(status.st_size), '\0');
  size_t length = 0;
  while (length < content.size()) {
    const ssize_t got = read(fd.get(), content.data() + length, content.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error_format("cannot read %.150s: %s", file.c_str(), std::strerror(errno));
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  content.resize(length);
  return std::optional<std::string>(std::move(content));
}

Result<void> write_persisted_file(const std::string& file, const std::string& content) {
  const std::string beside = file + ".new";
  unlink(beside.c_str());
  FileDescriptor fd(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  bool written = static_cast<bool>(fd);
  for (size_t length = 0; written && length < content.size();) {
    const ssize_t wrote = write(fd.get(), content.data() + length, content.size() - length);
    if (wrote < 0 && errno == EINTR) continue;
    written = wrote > 0;
    length += written ? static_cast<size_t>(wrote) : 0;
  }
  if (written && std::rename(beside.c_str(), file.c_str()) == 0) return {};
  return error_format("cannot write %.150s: %s", file.c_str(), std::strerror(errno));
}

bool is_there(const FileDescriptor& file) {
  struct stat status {};
  return file && fstat(file.get(), &status) == 0 && status.st_nlink > 0;
}

}  // namespace nvshare::scheduler
