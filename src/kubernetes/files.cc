#include "kubernetes/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/fd.h"

namespace nvshare::kubernetes {
namespace {

Error failed(const char* what, const std::string& path) {
  return error_format("cannot %s %.160s: %s", what, path.c_str(), strerror(errno));
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

Result<void> make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return failed("make the folder", path);
}

Result<std::string> read_file(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return failed("read", path);
  std::string content;
  struct stat status {};
  if (fstat(file.get(), &status) == 0 && status.st_size > 0) content.reserve(static_cast<size_t>(status.st_size));
  char block[65536];
  while (true) {
    ssize_t count = read(file.get(), block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed("read", path);
    if (count == 0) return content;
    content.append(block, static_cast<size_t>(count));
  }
}

Result<void> write_file_atomically(const std::string& path, std::string_view content) {
  static std::atomic<unsigned> number{0};
  if (auto ok = make_folder(path.substr(0, path.rfind('/'))); !ok) return ok;
  // No suffix .json, so that a runtime that looks into the folder passes over it; left-overs of a crash are overwritten some day or
  // harmless.
  std::string draft = path + ".new-" + std::to_string(getpid()) + "-" + std::to_string(number.fetch_add(1));
  FileDescriptor file(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) return failed("write", draft);
  // The mask of this process does not matter: every container has to be able to read it.
  if (fchmod(file.get(), 0644) != 0 || !write_all(file.get(), content) || fsync(file.get()) != 0 ||
      rename(draft.c_str(), path.c_str()) != 0) {
    Error error = failed("write", path);
    unlink(draft.c_str());
    return error;
  }
  return {};
}

}  // namespace nvshare::kubernetes
