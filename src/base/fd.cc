#include "base/fd.h"

#include <unistd.h>

namespace nvshare {

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

}  // namespace nvshare
